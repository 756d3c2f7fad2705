// Prefill attention over paged KV in float32: a chunk of one sequence's queries against its context.
//
// The context's keys are first packed into panels of 16 and its values into rows, once for a KV head;
// then tiles of queries walk over tiles of keys with a running softmax. The query heads of a KV head
// are rows of one tile and share what is read. Keys beyond a tile's last query are never looked at,
// so the causal half is skipped. Key tiles begin at multiples of kKeys whatever the chunk is: a
// token's result does not depend on how its prompt was cut, to the bit.
//
// pages     [N, 2, Hk, S, D]   keys at [:, 0], values at [:, 1]
// queries   [x, Hq, D]         read, rows `query_stride` apart; D a multiple of 16
// out       [x, Hq, D]         written, contiguous
// table     [blocks]           block ids of the sequence
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <algorithm>
#include <cstdint>
#include <memory>

namespace {

constexpr int64_t kLanes = 8, kPanel = 2 * kLanes;
constexpr int64_t kTile = 6;        // rows whose sums fit the registers
constexpr int64_t kQueryRows = 48;  // of a tile of queries: tokens times heads of the group
constexpr int64_t kKeys = 128;      // of a tile of keys
constexpr float kHidden = -1e30f;   // score of a key that a query must not see
constexpr float kLog2E = 1.44269504f;

typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void save(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// 2^x for x <= 0, and 0 far below: 2^n * 2^f with |f| <= 1/2 and the series of 2^f.
inline Vector power_of_two(Vector x) {
  const Vector bounded = larger(x, Vector{} - 126.0f);
  const Integers n = __builtin_convertvector(bounded - 0.5f, Integers);
  const Vector f = bounded - __builtin_convertvector(n, Vector);
  Vector power = f * 1.5403530e-4f + 1.3333558e-3f;
  power = power * f + 9.6181291e-3f;
  power = power * f + 5.5504109e-2f;
  power = power * f + 2.4022651e-1f;
  power = power * f + 6.9314718e-1f;
  power = power * f + 1.0f;
  power *= (Vector)((n + 127) << 23);
  return x < -125.0f ? Vector{} : power;
}

inline float largest(Vector v) {
  float most = v[0];
  for (int64_t i = 1; i < kLanes; ++i) most = std::max(most, v[i]);
  return most;
}

inline float total(Vector v) {
  float sum = 0.0f;
  for (int64_t i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// One KV head's context from position `first` on, packed: keys [panels][D][16], values [keys][D].
struct Context {
  const float* keys;
  const float* values;
  int64_t first, head_size;
};

// c [rows, 16] = keep[row] * c + a [rows, depth] * b [depth, 16]; keep == nullptr starts from zero.
template <int64_t kRows>
inline void multiply(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                     int64_t depth, float* c, int64_t c_stride, const float* keep) {
  Vector sums[kRows][2] = {};
  if (keep != nullptr) {
    for (int64_t r = 0; r < kRows; ++r) {
      sums[r][0] = load(c + r * c_stride) * keep[r];
      sums[r][1] = load(c + r * c_stride + kLanes) * keep[r];
    }
  }
  for (int64_t k = 0; k < depth; ++k, b += b_stride) {
    const Vector left = load(b), right = load(b + kLanes);
#pragma GCC unroll 6
    for (int64_t r = 0; r < kRows; ++r) {
      const float factor = a[r * a_stride + k];
      sums[r][0] += factor * left;
      sums[r][1] += factor * right;
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    save(c + r * c_stride, sums[r][0]);
    save(c + r * c_stride + kLanes, sums[r][1]);
  }
}

// A tile of queries and what it has found so far. Rows beyond `rows` are zeros that nobody reads.
struct Tile {
  float queries[kQueryRows * 256], sums[kQueryRows * 256];
  float scores[kQueryRows * kKeys];
  float most[kQueryRows], weight[kQueryRows], keep[kQueryRows];
  int64_t rows, padded;  // padded: whole tiles of registers
};

// Hides what row m, at `position`, must not see among `count` keys from `first` on.
void hide(float* scores, int64_t first, int64_t count, int64_t position, int64_t window) {
  for (int64_t j = std::max<int64_t>(0, position + 1 - first); j < count; ++j) scores[j] = kHidden;
  if (window <= 0) return;
  const int64_t seen = std::min(count, position + 1 - window - first);
  for (int64_t j = 0; j < seen; ++j) scores[j] = kHidden;
}

// Scores become weights; the row's running maximum and sum of weights go on.
void weigh(Tile& tile, int64_t m, int64_t count) {
  float* scores = tile.scores + m * kKeys;
  Vector most_of = load(scores);
  for (int64_t j = kLanes; j < count; j += kLanes) most_of = larger(most_of, load(scores + j));
  const float most = std::max(tile.most[m], largest(most_of));
  Vector sum{};
  for (int64_t j = 0; j < count; j += kLanes) {
    const Vector weight = power_of_two(load(scores + j) - most);
    save(scores + j, weight);
    sum += weight;
  }
  tile.keep[m] = power_of_two(Vector{} + (tile.most[m] - most))[0];
  tile.weight[m] = tile.weight[m] * tile.keep[m] + total(sum);
  tile.most[m] = most;
}

// The tile against keys [first, first + count), count a multiple of 16. `position` is that of the
// tile's first token; a token's `group` heads are rows beside each other.
void attend(Tile& tile, const Context& context, int64_t first, int64_t count, int64_t position,
            int64_t group, int64_t window) {
  const int64_t size = context.head_size, offset = first - context.first;
  for (int64_t j = 0; j < count; j += kPanel) {
    for (int64_t m = 0; m < tile.padded; m += kTile)
      multiply<kTile>(tile.queries + m * size, size, context.keys + (offset + j) * size, kPanel,
                      size, tile.scores + m * kKeys + j, kKeys, nullptr);
  }
  for (int64_t m = 0; m < tile.rows; ++m) {
    hide(tile.scores + m * kKeys, first, count, position + m / group, window);
    weigh(tile, m, count);
  }
  for (int64_t d = 0; d < size; d += kPanel) {
    for (int64_t m = 0; m < tile.padded; m += kTile)
      multiply<kTile>(tile.scores + m * kKeys, kKeys, context.values + offset * size + d, size,
                      count, tile.sums + m * size + d, size, tile.keep + m);
  }
}

}  // namespace

// `prefix` tokens stand before the chunk's `length`; window 0 sees all.
extern "C" void atom_lite_prefill_attention_f32(
    const float* queries, int64_t query_stride, const float* pages, const int64_t* table,
    float* out, int64_t prefix, int64_t length, int64_t num_heads, int64_t num_kv_heads,
    int64_t block_size, int64_t head_size, float scale, int64_t window) {
  const int64_t group = num_heads / num_kv_heads, context = prefix + length;
  const int64_t lowest = window > 0 ? std::max<int64_t>(0, prefix + 1 - window) : 0;
  const int64_t first = lowest / kKeys * kKeys;
  const int64_t num_keys = (context - first + kPanel - 1) / kPanel * kPanel;
  const int64_t head_page = block_size * head_size;
  const int64_t block_stride = 2 * num_kv_heads * head_page;
  const std::unique_ptr<float[]> keys(new float[num_kv_heads * num_keys * head_size]);
  const std::unique_ptr<float[]> values(new float[num_kv_heads * num_keys * head_size]);
  // Tokens of a tile; a group of more heads than a tile has rows is cut into several.
  const int64_t heads_at_once = std::min(group, kQueryRows);
  const int64_t tokens_at_once = kQueryRows / heads_at_once;
  const int64_t head_parts = (group + heads_at_once - 1) / heads_at_once;
  const int64_t num_tiles = (length + tokens_at_once - 1) / tokens_at_once;
#pragma omp parallel
  {
#pragma omp for collapse(2) schedule(static)
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      for (int64_t panel = 0; panel < num_keys / kPanel; ++panel) {
        float* to_keys = keys.get() + (head * num_keys + panel * kPanel) * head_size;
        float* to_values = values.get() + (head * num_keys + panel * kPanel) * head_size;
        for (int64_t j = 0; j < kPanel; ++j) {
          const int64_t position = first + panel * kPanel + j;
          if (position >= context) {  // hidden from all, but no NaN may stand there
            for (int64_t d = 0; d < head_size; ++d) to_keys[d * kPanel + j] = 0.0f;
            std::fill(to_values + j * head_size, to_values + (j + 1) * head_size, 0.0f);
            continue;
          }
          const float* key = pages + table[position / block_size] * block_stride +
                             head * head_page + position % block_size * head_size;
          const float* value = key + num_kv_heads * head_page;
          for (int64_t d = 0; d < head_size; ++d) to_keys[d * kPanel + j] = key[d];
          std::copy(value, value + head_size, to_values + j * head_size);
        }
      }
    }
    const std::unique_ptr<Tile> tile(new Tile);
#pragma omp for collapse(3) schedule(dynamic, 1)
    for (int64_t back = 0; back < num_tiles; ++back) {  // the longest first
      for (int64_t head = 0; head < num_kv_heads; ++head) {
        for (int64_t part = 0; part < head_parts; ++part) {
          const int64_t token = (num_tiles - 1 - back) * tokens_at_once;
          const int64_t tokens = std::min(tokens_at_once, length - token);
          const int64_t part_heads = std::min(heads_at_once, group - part * heads_at_once);
          const int64_t first_head = head * group + part * heads_at_once;
          tile->rows = tokens * part_heads;
          tile->padded = (tile->rows + kTile - 1) / kTile * kTile;
          std::fill(tile->queries, tile->queries + tile->padded * head_size, 0.0f);
          std::fill(tile->sums, tile->sums + tile->padded * head_size, 0.0f);
          std::fill(tile->scores, tile->scores + tile->padded * kKeys, 0.0f);
          std::fill(tile->most, tile->most + kQueryRows, kHidden);
          std::fill(tile->weight, tile->weight + kQueryRows, 0.0f);
          std::fill(tile->keep, tile->keep + kQueryRows, 0.0f);
          for (int64_t m = 0; m < tile->rows; ++m) {
            const float* query = queries + (token + m / part_heads) * query_stride +
                                 (first_head + m % part_heads) * head_size;
            for (int64_t d = 0; d < head_size; ++d)
              tile->queries[m * head_size + d] = query[d] * (scale * kLog2E);
          }
          const Context own{keys.get() + head * num_keys * head_size,
                            values.get() + head * num_keys * head_size, first, head_size};
          const int64_t position = prefix + token;
          const int64_t seen_from = window > 0 ? std::max(first, position + 1 - window) : first;
          const int64_t seen_to =
              (position + tokens - first + kPanel - 1) / kPanel * kPanel + first;
          for (int64_t at = seen_from / kKeys * kKeys; at < seen_to; at += kKeys)
            attend(*tile, own, at, std::min(kKeys, seen_to - at), position, part_heads, window);
          for (int64_t m = 0; m < tile->rows; ++m) {
            float* to = out + ((token + m / part_heads) * num_heads + first_head + m % part_heads) *
                                  head_size;
            const float share = 1.0f / tile->weight[m];
            for (int64_t d = 0; d < head_size; ++d) to[d] = tile->sums[m * head_size + d] * share;
          }
        }
      }
    }
  }
}
