// Keys and values stored into pages of every format, then decodes and prefill chunks over them.
//
// Slots that no token has filled hold NaN, where the format has one: a kernel that reads them shows.

#include <algorithm>
#include <numeric>

#include "drive.h"
#include "kernels.h"

namespace {

enum Format : int64_t { kFloat32, kBfloat16, kInt8, kFp8 };
constexpr Format kFormats[] = {kFloat32, kBfloat16, kInt8, kFp8};
constexpr int64_t kBytes[] = {4, 2, 1, 1};
// How far a stored number may be from the given one, as a share of the head's largest.
constexpr double kRounding[] = {0.0, 0x1p-8, 0.501 / 127, 0.501 / 14};

struct Shape {
  int64_t num_heads, num_kv_heads, head_size, block_size;
};

// Sequences whose blocks lie in any order in one cache, each in a table of its own width.
struct Cache {
  Format format;
  Shape shape;
  std::vector<int64_t> contexts;
  int64_t table_width = 0;
  std::vector<int64_t> tables;  // [sequences, table_width]; what a sequence does not need is -1
  std::vector<uint8_t> pages;
  std::vector<float> scales;

  Cache(Format format, const Shape& shape, std::vector<int64_t> lengths)
      : format(format), shape(shape), contexts(std::move(lengths)) {
    int64_t num_blocks = 0;
    for (const int64_t context : contexts) {
      const int64_t width = divided_up(context, shape.block_size);
      table_width = std::max(table_width, width);
      num_blocks += width;
    }
    std::vector<int64_t> blocks(num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    for (int64_t i = num_blocks; i > 1; --i) std::swap(blocks[i - 1], blocks[whole(0, i - 1)]);
    tables.assign(contexts.size() * table_width, -1);
    auto next = blocks.begin();
    for (size_t row = 0; row < contexts.size(); ++row) {
      const int64_t width = divided_up(contexts[row], shape.block_size);
      std::copy(next, next + width, tables.begin() + row * table_width);
      next += width;
    }
    const int64_t slots = num_blocks * 2 * shape.num_kv_heads * shape.block_size;
    pages = std::vector<uint8_t>(slots * shape.head_size * kBytes[format], 0xff);  // NaN
    if (format == kInt8 || format == kFp8) scales = std::vector<float>(slots, NAN);
    for (size_t row = 0; row < contexts.size(); ++row) store(row);
  }

  float* scales_or_null() { return scales.empty() ? nullptr : scales.data(); }

  int64_t slot(int64_t row, int64_t position) const {
    return tables[row * table_width + position / shape.block_size] * shape.block_size +
           position % shape.block_size;
  }

  // Number `d` of a key (0) or value (1).
  double at(int64_t row, int64_t position, int64_t which, int64_t head, int64_t d) const {
    const int64_t flat = slot(row, position), block = flat / shape.block_size;
    const int64_t place = ((block * 2 + which) * shape.num_kv_heads + head) * shape.block_size +
                          flat % shape.block_size;
    const uint8_t* from = &pages[(place * shape.head_size + d) * kBytes[format]];
    if (format == kInt8) return static_cast<int8_t>(*from) * double(scales[place]);
    if (format == kFp8) return small_float(*from, 4, 3) * scales[place];
    if (format == kBfloat16) return bfloat16_value(static_cast<uint16_t>(from[0] | from[1] << 8));
    float one = 0.0f;
    std::memcpy(&one, from, 4);
    return one;
  }

 private:
  // Rows of keys and values as they lie in the joined product of q, k and v.
  void store(int64_t row) {
    const int64_t size = shape.num_kv_heads * shape.head_size, stride = 2 * size + 5;
    const int64_t count = contexts[row];
    const std::vector<float> keys = numbers(extent(count, size, stride));
    const std::vector<float> values = numbers(extent(count, size, stride));
    std::vector<int64_t> slots(count);
    for (int64_t i = 0; i < count; ++i) slots[i] = slot(row, i);
    atom_lite_store_kv(keys.data(), values.data(), stride, pages.data(), scales_or_null(), format,
                       slots.data(), count, shape.num_kv_heads, shape.block_size, shape.head_size);
    for (int64_t i = 0; i < count; i += 7) {
      for (int64_t d = 0; d < size; ++d) {
        const int64_t head = d / shape.head_size, from = i * stride + d;
        expect_near(at(row, i, 0, head, d % shape.head_size), keys[from], kRounding[format], "key");
        expect_near(at(row, i, 1, head, d % shape.head_size), values[from], kRounding[format],
                    "value");
      }
    }
  }
};

// What query `query` of head `head` at `position` finds, number by number.
std::vector<double> attended(const Cache& cache, int64_t row, const float* query, int64_t head,
                             int64_t position, double scale, int64_t window) {
  const int64_t size = cache.shape.head_size;
  const int64_t kv_head = head / (cache.shape.num_heads / cache.shape.num_kv_heads);
  const int64_t first = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
  std::vector<double> found(size);
  double sum = 0.0;
  for (int64_t j = first; j <= position; ++j) {
    double score = 0.0;
    for (int64_t d = 0; d < size; ++d) score += query[d] * cache.at(row, j, 0, kv_head, d);
    const double weight = std::exp(score * scale);  // scores are small here
    sum += weight;
    for (int64_t d = 0; d < size; ++d) found[d] += weight * cache.at(row, j, 1, kv_head, d);
  }
  for (double& one : found) one /= sum;
  return found;
}

void expect_attended(const Cache& cache, int64_t row, const float* query, int64_t head,
                     int64_t position, double scale, int64_t window, const float* got,
                     const char* kernel) {
  const std::vector<double> exact = attended(cache, row, query, head, position, scale, window);
  const std::string name = std::string(kernel) + ", format " + std::to_string(cache.format) +
                           ", head size " + std::to_string(cache.shape.head_size) + ", position " +
                           std::to_string(position) + ", window " + std::to_string(window);
  for (int64_t d = 0; d < cache.shape.head_size; ++d) expect_near(got[d], exact[d], 2e-5, name);
}

float scale_of(const Shape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.head_size));
}

void decode(Cache& cache, int64_t window) {
  const Shape& shape = cache.shape;
  const auto rows = static_cast<int64_t>(cache.contexts.size());
  const int64_t size = shape.num_heads * shape.head_size, stride = size + 7;
  const std::vector<float> queries = numbers(extent(rows, size, stride));
  std::vector<float> out(rows * size, kUntouched);
  const float scale = scale_of(shape);
  atom_lite_decode_attention(queries.data(), stride, cache.pages.data(), cache.scales_or_null(),
                             cache.format, cache.tables.data(), cache.table_width,
                             cache.contexts.data(), out.data(), rows, shape.num_heads,
                             shape.num_kv_heads, shape.block_size, shape.head_size, scale, window);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < shape.num_heads; head += 2) {
      const int64_t at = head * shape.head_size;
      expect_attended(cache, row, &queries[row * stride + at], head, cache.contexts[row] - 1, scale,
                      window, &out[row * size + at], "decode");
    }
  }
}

// Tokens from `prefix` on of a cache's only sequence; every `step`th is compared.
void prefill(Cache& cache, int64_t prefix, int64_t step, int64_t window) {
  const Shape& shape = cache.shape;
  const int64_t length = cache.contexts[0] - prefix;
  const int64_t size = shape.num_heads * shape.head_size, stride = size + 7;
  const std::vector<float> queries = numbers(extent(length, size, stride));
  std::vector<float> out(length * size, kUntouched);
  const float scale = scale_of(shape);
  atom_lite_prefill_attention(queries.data(), stride, cache.pages.data(), cache.scales_or_null(),
                              cache.format, cache.tables.data(), out.data(), prefix, length,
                              shape.num_heads, shape.num_kv_heads, shape.block_size,
                              shape.head_size, scale, window);
  for (int64_t token = 0; token < length; token += step) {
    for (int64_t head = 0; head < shape.num_heads; head += 5) {
      const int64_t at = head * shape.head_size;
      expect_attended(cache, 0, &queries[token * stride + at], head, prefix + token, scale, window,
                      &out[token * size + at], "prefill");
    }
  }
}

void drive_format(Format format) {
  // Few or many query heads for each KV head, head sizes with code of their own and others.
  const Shape shapes[] = {{3, 1, 64, 16}, {2, 2, 128, 5}, {6, 2, 20, 1}, {50, 1, 6, 3}};
  for (const Shape& shape : shapes) {
    Cache none(format, shape, {});
    decode(none, 0);
    Cache rows(format, shape, {1, 2, 15, 16, 17, 256, 259, 300});
    Cache chunk(format, shape, {77});
    for (const int64_t window : {0, 1, 260}) {
      decode(rows, window);
      for (const int64_t prefix : {0, 40, 76, 77}) prefill(chunk, prefix, 9, window);
    }
  }
  Cache longest(format, {1, 1, atom_lite_prefill_longest_head(), 16}, {40});
  prefill(longest, 0, 9, 0);
  Cache parts(format, {2, 1, 10, 16}, {1030});  // the context is cut into parts
  for (const int64_t window : {0, 530}) {
    prefill(parts, 1025, 2, window);  // parts are shared out
    prefill(parts, 900, 50, window);  // tiles are
  }
}

}  // namespace

void drive_attention() {
  for (const Format format : kFormats) drive_format(format);
}
