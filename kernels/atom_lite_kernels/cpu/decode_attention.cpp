// Decode attention over paged KV in float32: one query token for each row, pages read in place.
//
// Work is split over (row, KV head); the query heads of a KV head share each key and value that is
// read. Two passes over the context: scores, then weighted values. Plain C++ with a C ABI: pointers
// and sizes only, no torch headers.
//
// pages     [N, 2, Hk, S, D]   keys at [:, 0], values at [:, 1]
// queries   [B, Hq, D]         read, rows `query_stride` apart
// out       [B, Hq, D]         written, contiguous
// tables    [B, table_stride]  block ids
// contexts  [B]                tokens of each row, the new one included

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

// One KV head of one row: where its pages are, and which positions are seen.
struct Context {
  const float* pages;
  const int64_t* table;
  int64_t block_stride, block_size, begin, end;
};

// Scores become weights that add up to 1.
void softmax(float* scores, int64_t size) {
  const float most = *std::max_element(scores, scores + size);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    scores[i] = std::exp(scores[i] - most);
    sum += scores[i];
  }
  const float scale = 1.0f / sum;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) scores[i] *= scale;
}

// Calls visit(first vector of the run, its position, length) for each run of slots in one block.
template <typename Visit>
void for_each_run(const Context& context, int64_t head_size, Visit visit) {
  for (int64_t position = context.begin; position < context.end;) {
    const int64_t slot = position % context.block_size;
    const int64_t length = std::min(context.block_size - slot, context.end - position);
    const int64_t block = context.table[position / context.block_size];
    visit(context.pages + block * context.block_stride + slot * head_size, position, length);
    position += length;
  }
}

// FixedSize > 0 lets the compiler keep a head's vector in registers; 0 takes any size.
template <int64_t FixedSize>
void score(const Context& keys, const float* query, int64_t size, float scale, float* scores) {
  const int64_t head_size = FixedSize > 0 ? FixedSize : size;
  for_each_run(keys, head_size, [&](const float* key, int64_t position, int64_t length) {
    for (int64_t slot = 0; slot < length; ++slot, key += head_size) {
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < head_size; ++i) sum += query[i] * key[i];
      scores[position - keys.begin + slot] = sum * scale;
    }
  });
}

template <int64_t FixedSize>
void weigh(const Context& values, const float* weights, int64_t size, float* result) {
  const int64_t head_size = FixedSize > 0 ? FixedSize : size;
  float fixed[FixedSize > 0 ? FixedSize : 1];
  float* total = FixedSize > 0 ? fixed : result;
  std::fill(total, total + head_size, 0.0f);
  for_each_run(values, head_size, [&](const float* value, int64_t position, int64_t length) {
    for (int64_t slot = 0; slot < length; ++slot, value += head_size) {
      const float weight = weights[position - values.begin + slot];
#pragma omp simd
      for (int64_t i = 0; i < head_size; ++i) total[i] += weight * value[i];
    }
  });
  if (FixedSize > 0) std::copy(fixed, fixed + head_size, result);
}

template <int64_t FixedSize>
void attend(const Context& keys, const Context& values, const float* queries, float* results,
            int64_t group, int64_t head_size, float scale, float* scores) {
  for (int64_t g = 0; g < group; ++g) {
    score<FixedSize>(keys, queries + g * head_size, head_size, scale, scores);
    softmax(scores, keys.end - keys.begin);
    weigh<FixedSize>(values, scores, head_size, results + g * head_size);
  }
}

}  // namespace

extern "C" void atom_lite_decode_attention_f32(
    const float* queries, int64_t query_stride, const float* pages, const int64_t* tables,
    int64_t table_stride, const int64_t* contexts, float* out, int64_t rows, int64_t num_heads,
    int64_t num_kv_heads, int64_t block_size, int64_t head_size, float scale, int64_t window) {
  const int64_t group = num_heads / num_kv_heads;
  const int64_t head_page = block_size * head_size;
  const int64_t block_stride = 2 * num_kv_heads * head_page;
  const auto attend_group = head_size == 64    ? attend<64>
                            : head_size == 128 ? attend<128>
                                               : attend<0>;
  int64_t longest = 0;
  for (int64_t row = 0; row < rows; ++row) longest = std::max(longest, contexts[row]);
#pragma omp parallel
  {
    std::vector<float> scores(longest);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < num_kv_heads; ++head) {
        const int64_t end = contexts[row];
        const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
        const Context keys{pages + head * head_page, tables + row * table_stride,
                           block_stride, block_size, begin, end};
        Context values = keys;
        values.pages += num_kv_heads * head_page;
        attend_group(keys, values, queries + row * query_stride + head * group * head_size,
                     out + (row * num_heads + head * group) * head_size, group, head_size, scale,
                     scores.data());
      }
    }
  }
}
