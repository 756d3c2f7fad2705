// Decode attention over paged KV in float32: one query token for each row, pages read in place.
//
// A row's context is cut into parts of kPartTokens, so that a few long rows keep all threads busy.
// Work is split over (row, part, KV head); the query heads of a KV head share each key and value
// that is read, and the next block is fetched while one is worked on, as blocks lie anywhere. What a
// part finds (its largest score, sum of weights, weighted values) is merged in the order of parts.
// Where a row is cut depends on its own length only: its result does not depend on its company.
//
// pages     [N, 2, Hk, S, D]   keys at [:, 0], values at [:, 1]
// queries   [B, Hq, D]         read, rows `query_stride` apart
// out       [B, Hq, D]         written, contiguous
// tables    [B, table_stride]  block ids
// contexts  [B]                tokens of each row, the new one included
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int64_t kPartTokens = 512;
constexpr int64_t kLanes = 8;
constexpr int64_t kLineFloats = 16;  // of a cache line

typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef int32_t Order __attribute__((vector_size(kLanes * 4)));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }

// Positions [begin, end) of one KV head of one row, and where its pages are.
struct Part {
  const float* pages;
  const int64_t* table;
  int64_t block_stride, block_size, begin, end;
};

// What a part found for one query head: values is not yet divided by the sum of weights.
struct Found {
  float most, sum;
  float* values;
};

// Memory that will be needed next, asked for a little at a time between arithmetic: asked for at
// once, it would fill the core's few miss buffers, and nothing would overlap.
struct Fetch {
  const float *at, *end;
  void some() {
    if (at >= end) return;
    __builtin_prefetch(at, 0, 2);  // to the second-level cache
    __builtin_prefetch(at + kLineFloats, 0, 2);
    at += 2 * kLineFloats;
  }
};

// Calls visit(first vector of the run, its position, length, the next block) for each run of slots
// in one block.
template <typename Visit>
void for_each_run(const Part& part, int64_t head_size, Visit visit) {
  for (int64_t position = part.begin; position < part.end;) {
    const int64_t slot = position % part.block_size;
    const int64_t length = std::min(part.block_size - slot, part.end - position);
    const int64_t* block = part.table + position / part.block_size;
    Fetch next{};
    if (position + length < part.end) {
      next.at = part.pages + block[1] * part.block_stride;
      next.end = next.at + part.block_size * head_size;
    }
    visit(part.pages + *block * part.block_stride + slot * head_size, position, length, next);
    position += length;
  }
}

// Picks numbers of a and b by position, b's counted on from a's.
template <int... kPicked>
inline Vector pick(Vector a, Vector b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kPicked...);
#else
  return __builtin_shuffle(a, b, Order{kPicked...});
#endif
}

// The sum of each of eight vectors, in one.
inline Vector sums_of(const Vector (&v)[kLanes]) {
  Vector pairs[4], fours[2];
  for (int64_t i = 0; i < 4; ++i)
    pairs[i] = pick<0, 8, 2, 10, 4, 12, 6, 14>(v[2 * i], v[2 * i + 1]) +
               pick<1, 9, 3, 11, 5, 13, 7, 15>(v[2 * i], v[2 * i + 1]);
  for (int64_t i = 0; i < 2; ++i)
    fours[i] = pick<0, 1, 8, 9, 4, 5, 12, 13>(pairs[2 * i], pairs[2 * i + 1]) +
               pick<2, 3, 10, 11, 6, 7, 14, 15>(pairs[2 * i], pairs[2 * i + 1]);
  return pick<0, 1, 2, 3, 8, 9, 10, 11>(fours[0], fours[1]) +
         pick<4, 5, 6, 7, 12, 13, 14, 15>(fours[0], fours[1]);
}

// Scores of `length` keys. kSize > 0 lets the compiler unroll over a head; 0 takes any size.
template <int64_t kSize>
void score(const float* query, const float* key, int64_t length, int64_t size, float scale,
           float* scores, Fetch& next) {
  const int64_t head_size = kSize > 0 ? kSize : size;
  int64_t slot = 0;
  if constexpr (kSize > 0) {
    for (; slot + kLanes <= length; slot += kLanes, key += kLanes * kSize) {
      Vector products[kLanes] = {};
      for (int64_t i = 0; i < kSize; i += kLanes) {
        const Vector part = load(query + i);
        next.some();
#pragma GCC unroll 8
        for (int64_t j = 0; j < kLanes; ++j) products[j] += part * load(key + j * kSize + i);
      }
      *reinterpret_cast<Vector*>(scores + slot) = sums_of(products) * scale;
    }
  }
  for (; slot < length; ++slot, key += head_size) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < head_size; ++i) sum += query[i] * key[i];
    scores[slot] = sum * scale;
  }
}

// Scores become weights relative to the largest, which is 1.
void weights_of(float* scores, int64_t size, Found& found) {
  const float most = *std::max_element(scores, scores + size);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    scores[i] = std::exp(scores[i] - most);
    sum += scores[i];
  }
  found.most = most;
  found.sum = sum;
}

// Adds `length` weighted values to the total.
template <int64_t kSize>
void weigh(const float* weights, const float* value, int64_t length, int64_t size, float* total,
           Fetch& next) {
  if constexpr (kSize > 0) {
    constexpr int64_t kVectors = kSize / kLanes;
    Vector sums[kVectors];
    for (int64_t i = 0; i < kVectors; ++i) sums[i] = load(total + i * kLanes);
    for (int64_t slot = 0; slot < length; ++slot, value += kSize) {
      next.some();
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVectors; ++i) sums[i] += weights[slot] * load(value + i * kLanes);
    }
    for (int64_t i = 0; i < kVectors; ++i)
      *reinterpret_cast<Vector*>(total + i * kLanes) = sums[i];
    return;
  }
  for (int64_t slot = 0; slot < length; ++slot, value += size) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) total[i] += weights[slot] * value[i];
  }
}

// `scores` has room for kPartTokens of each query head of the group.
template <int64_t kSize>
void attend(const Part& keys, const Part& values, const float* queries, Found* found,
            int64_t group, int64_t head_size, float scale, float* scores) {
  for_each_run(keys, head_size, [&](const float* key, int64_t position, int64_t length,
                                    Fetch next) {
    for (int64_t g = 0; g < group; ++g)
      score<kSize>(queries + g * head_size, key, length, head_size, scale,
                   scores + g * kPartTokens + position - keys.begin, next);
  });
  for (int64_t g = 0; g < group; ++g) {
    weights_of(scores + g * kPartTokens, keys.end - keys.begin, found[g]);
    std::fill(found[g].values, found[g].values + head_size, 0.0f);
  }
  for_each_run(values, head_size, [&](const float* value, int64_t position, int64_t length,
                                      Fetch next) {
    for (int64_t g = 0; g < group; ++g)
      weigh<kSize>(scores + g * kPartTokens + position - values.begin, value, length, head_size,
                   found[g].values, next);
  });
}

// The answer of one query head from what `count` parts found, each `stride` apart.
void merge(const Found* found, int64_t count, int64_t stride, float* out, int64_t head_size) {
  float most = found[0].most;
  for (int64_t i = 1; i < count; ++i) most = std::max(most, found[i * stride].most);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i)
    sum += found[i * stride].sum * std::exp(found[i * stride].most - most);
  std::fill(out, out + head_size, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    const float share = std::exp(found[i * stride].most - most) / sum;
    const float* values = found[i * stride].values;
#pragma omp simd
    for (int64_t d = 0; d < head_size; ++d) out[d] += share * values[d];
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
  const auto first_of = [&](int64_t row) {
    return window > 0 ? std::max<int64_t>(0, contexts[row] - window) : 0;
  };
  // First part of each row among all, and the row of each part.
  std::vector<int64_t> first_part{0}, row_of;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = (contexts[row] - first_of(row) + kPartTokens - 1) / kPartTokens;
    row_of.insert(row_of.end(), count, row);
    first_part.push_back(first_part.back() + count);
  }
  const int64_t num_parts = first_part.back();
  std::vector<float> values(num_parts * num_heads * head_size);
  std::vector<Found> found(num_parts * num_heads);
#pragma omp parallel
  {
    std::vector<float> scores(group * kPartTokens);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t part = 0; part < num_parts; ++part) {
      for (int64_t head = 0; head < num_kv_heads; ++head) {
        const int64_t row = row_of[part];
        const int64_t begin = first_of(row) + (part - first_part[row]) * kPartTokens;
        const Part keys{pages + head * head_page,
                        tables + row * table_stride,
                        block_stride,
                        block_size,
                        begin,
                        std::min(contexts[row], begin + kPartTokens)};
        Part stored = keys;
        stored.pages += num_kv_heads * head_page;
        const int64_t first = part * num_heads + head * group;
        for (int64_t g = 0; g < group; ++g)
          found[first + g].values = values.data() + (first + g) * head_size;
        attend_group(keys, stored, queries + row * query_stride + head * group * head_size,
                     found.data() + first, group, head_size, scale, scores.data());
      }
    }
#pragma omp for collapse(2) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < num_heads; ++head) {
        merge(found.data() + first_part[row] * num_heads + head,
              first_part[row + 1] - first_part[row], num_heads,
              out + (row * num_heads + head) * head_size, head_size);
      }
    }
  }
}
