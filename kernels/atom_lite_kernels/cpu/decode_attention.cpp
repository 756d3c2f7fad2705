// Decode attention over paged KV: one query token for each row, pages read in place.
//
// A row's context is cut into parts of kPartTokens, so that a few long rows keep all threads busy.
// Work is split over (row, part, KV head); the query heads of a KV head share each key and value
// that is read, and the next block is fetched while one is worked on, as blocks lie anywhere. What a
// part finds (its largest score, sum of weights, weighted values) is merged in the order of parts.
// Where a row is cut depends on its own length only: its result does not depend on its company.
//
// Numbers become float32 as they are read. A scaled format's scale is applied once for a token: to
// its score, and to its weight.
//
// queries   [B, Hq, D]         read, rows `query_stride` apart
// out       [B, Hq, D]         written, contiguous
// tables    [B, table_stride]  block ids
// contexts  [B]                tokens of each row, the new one included
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <vector>

#include "kv_pages.h"
#include "team.h"

namespace {

constexpr int64_t kPartTokens = 256;  // a multiple of kLanes
constexpr int64_t kLineBytes = 64;    // of a cache line

// Positions [begin, end) of one KV head of one row, and where its pages are.
struct Part {
  const Pages& pages;
  const int64_t* table;
  int64_t head, begin, end;
};

using Found = atom_lite::DecodeFound;

// Memory that will be needed next, asked for a little at a time between arithmetic: asked for at
// once, it would fill the core's few miss buffers, and nothing would overlap.
struct Fetch {
  const char *at, *end;
  void some() {
    if (at >= end) return;
    __builtin_prefetch(at, 0, 2);  // to the second-level cache
    __builtin_prefetch(at + kLineBytes, 0, 2);
    at += 2 * kLineBytes;
  }
};

// Calls visit(first slot of the run, its position, length, the next block) for each run of slots in
// one block; `values` as in Pages::first_slot.
template <class Format, class Visit>
void for_each_run(const Part& part, int64_t values, Visit visit) {
  const Pages& pages = part.pages;
  const auto* data = static_cast<const typename Format::Stored*>(pages.data);
  for (int64_t position = part.begin; position < part.end;) {
    const int64_t offset = position % pages.block_size;
    const int64_t length = std::min(pages.block_size - offset, part.end - position);
    const int64_t* block = part.table + position / pages.block_size;
    Fetch next{};
    if (position + length < part.end) {
      const auto* first = data + pages.first_slot(block[1], values, part.head) * pages.head_size;
      next.at = reinterpret_cast<const char*>(first);
      next.end = reinterpret_cast<const char*>(first + pages.head_page());
    }
    visit(pages.first_slot(*block, values, part.head) + offset, position, length, next);
    position += length;
  }
}

// Scores of `length` keys, scales not applied. kSize > 0 lets the compiler unroll over a head; 0
// takes any size.
template <class Format, int64_t kSize>
void score(const float* query, const typename Format::Stored* key, int64_t length, int64_t size,
           float scale, float* scores, Fetch& next) {
  const int64_t head_size = kSize > 0 ? kSize : size;
  int64_t slot = 0;
  if constexpr (kSize > 0) {
    for (; slot + kLanes <= length; slot += kLanes, key += kLanes * kSize) {
      Vector products[kLanes] = {};
      for (int64_t i = 0; i < kSize; i += kLanes) {
        const Vector part = load(query + i);
        next.some();
#pragma GCC unroll 16
        for (int64_t j = 0; j < kLanes; ++j) products[j] += part * Format::widen(key + j * kSize + i);
      }
      save(scores + slot, sums_of(products) * scale);
    }
  }
  for (; slot < length; ++slot, key += head_size) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head_size; ++i) sum += query[i] * Format::widen(key[i]);
    scores[slot] = sum * scale;
  }
}

// Scores become weights relative to the largest, which is 1. `scores` has room for whole vectors.
void weights_of(float* scores, int64_t size, Found& found) {
  const float most = *std::max_element(scores, scores + size);
  const int64_t padded = (size + kLanes - 1) / kLanes * kLanes;
  std::fill(scores + size, scores + padded, -HUGE_VALF);  // a weight of 0
  Vector sum{};
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Vector weight = power_of_two(load(scores + i) - most);
    save(scores + i, weight);
    sum += weight;
  }
  found.most = most;
  found.sum = total(sum);
}

// Adds `length` weighted values to the total.
template <class Format, int64_t kSize>
void weigh(const float* weights, const typename Format::Stored* value, int64_t length, int64_t size,
           float* to, Fetch& next) {
  if constexpr (kSize > 0) {
    constexpr int64_t kVectors = kSize / kLanes;
    Vector sums[kVectors];
    for (int64_t i = 0; i < kVectors; ++i) sums[i] = load(to + i * kLanes);
    for (int64_t slot = 0; slot < length; ++slot, value += kSize) {
      next.some();
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVectors; ++i)
        sums[i] += weights[slot] * Format::widen(value + i * kLanes);
    }
    for (int64_t i = 0; i < kVectors; ++i) save(to + i * kLanes, sums[i]);
    return;
  }
  for (int64_t slot = 0; slot < length; ++slot, value += size) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) to[i] += weights[slot] * Format::widen(value[i]);
  }
}

// Multiplies a run's scores or weights by the scales of its slots.
template <class Format>
void apply_scales(const Pages& pages, int64_t first_slot, int64_t length, float* numbers) {
  if constexpr (Format::kScaled) {
#pragma omp simd
    for (int64_t j = 0; j < length; ++j) numbers[j] *= pages.scales[first_slot + j];
  }
}

// `scores` has room for kPartTokens of each query head of the group; the scores are of powers of 2.
template <class Format, int64_t kSize>
void attend(const Part& part, const float* queries, Found* found, int64_t group, float scale,
            float* scores) {
  const Pages& pages = part.pages;
  const int64_t size = pages.head_size;
  const auto* data = static_cast<const typename Format::Stored*>(pages.data);
  for_each_run<Format>(part, 0, [&](int64_t slot, int64_t position, int64_t length, Fetch next) {
    for (int64_t g = 0; g < group; ++g) {
      float* to = scores + g * kPartTokens + position - part.begin;
      score<Format, kSize>(queries + g * size, data + slot * size, length, size, scale, to, next);
      apply_scales<Format>(pages, slot, length, to);
    }
  });
  for (int64_t g = 0; g < group; ++g) {
    weights_of(scores + g * kPartTokens, part.end - part.begin, found[g]);
    std::fill(found[g].values, found[g].values + size, 0.0f);
  }
  for_each_run<Format>(part, 1, [&](int64_t slot, int64_t position, int64_t length, Fetch next) {
    for (int64_t g = 0; g < group; ++g) {
      float* weights = scores + g * kPartTokens + position - part.begin;
      apply_scales<Format>(pages, slot, length, weights);
      weigh<Format, kSize>(weights, data + slot * size, length, size, found[g].values, next);
    }
  });
}

// The answer of one query head from what `count` parts found, each `stride` apart.
void merge(const Found* found, int64_t count, int64_t stride, float* out, int64_t head_size) {
  float most = found[0].most;
  for (int64_t i = 1; i < count; ++i) most = std::max(most, found[i * stride].most);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i)
    sum += found[i * stride].sum * power_of_two(found[i * stride].most - most);
  std::fill(out, out + head_size, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float share = power_of_two(found[i * stride].most - most) / sum;
    const float* values = found[i * stride].values;
#pragma omp simd
    for (int64_t d = 0; d < head_size; ++d) out[d] += share * values[d];
  }
}

// First position that a row sees.
int64_t first_of(const atom_lite::Decodes& decodes, int64_t row) {
  return decodes.window > 0 ? std::max<int64_t>(0, decodes.contexts[row] - decodes.window) : 0;
}

template <class Format>
void attend_rows(const atom_lite::Decodes& decodes, const Pages& pages,
                 atom_lite::DecodeParts& parts) {
  const int64_t group = decodes.num_heads / pages.num_kv_heads, head_size = pages.head_size;
  const auto attend_group = head_size == 64    ? attend<Format, 64>
                            : head_size == 128 ? attend<Format, 128>
                                               : attend<Format, 0>;
  const int64_t* first_part = parts.first.data();
  const int64_t num_parts = first_part[decodes.rows];
  Found* found = parts.found.data();
  std::vector<float> scores(group * kPartTokens);  // each thread's own
#pragma omp for collapse(2) schedule(dynamic, 1)
  for (int64_t part = 0; part < num_parts; ++part) {
    for (int64_t head = 0; head < pages.num_kv_heads; ++head) {
      const int64_t row = parts.row_of[part];
      const int64_t begin = first_of(decodes, row) + (part - first_part[row]) * kPartTokens;
      const Part own{pages, decodes.tables + row * decodes.table_stride, head, begin,
                     std::min(decodes.contexts[row], begin + kPartTokens)};
      const int64_t first = part * decodes.num_heads + head * group;
      for (int64_t g = 0; g < group; ++g)
        found[first + g].values = parts.values.data() + (first + g) * head_size;
      attend_group(own, decodes.queries + row * decodes.query_stride + head * group * head_size,
                   found + first, group, decodes.scale * kLog2E, scores.data());
    }
  }
#pragma omp for collapse(2) schedule(static) nowait
  for (int64_t row = 0; row < decodes.rows; ++row) {
    for (int64_t head = 0; head < decodes.num_heads; ++head) {
      merge(found + first_part[row] * decodes.num_heads + head,
            first_part[row + 1] - first_part[row], decodes.num_heads,
            decodes.out + (row * decodes.num_heads + head) * head_size, head_size);
    }
  }
}

}  // namespace

atom_lite::DecodeParts::DecodeParts(const Decodes& decodes, int64_t head_size) : first{0} {
  for (int64_t row = 0; row < decodes.rows; ++row) {
    const int64_t tokens = decodes.contexts[row] - first_of(decodes, row);
    const int64_t count = (tokens + kPartTokens - 1) / kPartTokens;
    row_of.insert(row_of.end(), count, row);
    first.push_back(first.back() + count);
  }
  values.resize(first.back() * decodes.num_heads * head_size);
  found.resize(first.back() * decodes.num_heads);
}

void atom_lite::attend_decodes(const Decodes& decodes, const KVCache& cache,
                               DecodeParts& parts) {
  const Pages pages{cache.pages, cache.scales, cache.num_kv_heads, cache.block_size,
                    cache.head_size};
  with_format(cache.format,
              [&](auto kind) { attend_rows<decltype(kind)>(decodes, pages, parts); });
}

// window 0 sees all.
extern "C" void atom_lite_decode_attention(
    const float* queries, int64_t query_stride, void* pages, float* scales, int64_t format,
    const int64_t* tables, int64_t table_stride, const int64_t* contexts, float* out, int64_t rows,
    int64_t num_heads, int64_t num_kv_heads, int64_t block_size, int64_t head_size, float scale,
    int64_t window) {
  const atom_lite::Decodes decodes{queries, tables,    contexts, out,   query_stride, table_stride,
                                   rows,    num_heads, window,   scale};
  const atom_lite::KVCache cache{pages, scales, format, num_kv_heads, block_size, head_size};
  atom_lite::DecodeParts parts(decodes, head_size);
#pragma omp parallel
  atom_lite::attend_decodes(decodes, cache, parts);
}
