// Prefill attention over paged KV: a chunk of one sequence's queries against its context.
//
// The context is cut into parts of kPartKeys, whose keys are packed into panels and whose values into
// rows, as float32. Tiles of queries walk over a part in tiles of keys with a running softmax; what
// the parts found is merged in their order. The query heads of a KV head are rows of one tile and
// share what is read. Keys beyond a tile's last query are never looked at, so the causal half is
// skipped.
//
// Parts and key tiles begin at multiples of their size whatever the chunk is: a token's result does
// not depend on how its prompt was cut, to the bit. So there are two ways to spread the work, with
// the same result: many tiles of queries are shared out, and each walks over all parts; of a few
// tiles (a small chunk over a long prefix) the parts are shared out.
//
// queries   [x, Hq, D]   read, rows `query_stride` apart
// out       [x, Hq, D]   written, contiguous
// table     [blocks]     block ids of the sequence
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <memory>

#include "kv_pages.h"

namespace {

constexpr int64_t kQueryRows = 48;   // of a tile of queries: tokens times heads of the group
constexpr int64_t kKeys = 128;       // of a tile of keys
constexpr int64_t kPartKeys = 512;   // packed, they stay in a core's second-level cache
constexpr int64_t kLongestHead = 256;
constexpr int64_t kFewTiles = 4;     // of each KV head: below, parts are shared out
constexpr float kHidden = -1e30f;    // score of a key that a query must not see

static_assert(kQueryRows % kTileRows == 0 && kKeys % kPanel == 0 && kPartKeys % kKeys == 0);

inline int64_t rounded_up(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// One chunk and how it is cut into tiles.
struct Chunk {
  const float* queries;
  const int64_t* table;
  float* out;
  int64_t query_stride, prefix, length, num_heads, group, window;
  float scale;
  // Tokens of a tile; a group of more heads than a tile has rows is cut into several.
  int64_t heads_at_once, tokens_at_once, head_parts, num_tiles;

  int64_t context() const { return prefix + length; }
  // First part that any query sees.
  int64_t first_part() const {
    return window > 0 ? std::max<int64_t>(0, prefix + 1 - window) / kPartKeys : 0;
  }
  int64_t end_part() const { return (context() + kPartKeys - 1) / kPartKeys; }
};

// Keys of one KV head from position `first` on: keys [panels][D][kPanel], values [keys][width].
struct Packed {
  float* keys;
  float* values;
  int64_t first;
};

// c [rows, kPanel] = keep[row] * c + a [rows, depth] * b [depth, kPanel]; no `keep` starts from zero.
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
#pragma GCC unroll 12
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

// What rows of queries have found in some keys; sums are not yet divided by the weight.
struct Found {
  float sums[kQueryRows * kLongestHead];
  float most[kQueryRows], weight[kQueryRows];
};

// A tile of queries. Rows beyond `rows` are zeros that nobody reads.
struct Tile {
  float queries[kQueryRows * kLongestHead], scores[kQueryRows * kKeys], keep[kQueryRows];
  int64_t rows, padded;  // padded: whole tiles of registers
  int64_t position, tokens, first_head, heads;  // of the first token; heads of a token
  int64_t head_size, width;                     // width: head_size in whole panels

  // Tile `index` of `chunk` for part `part` of a KV head's group.
  Tile(const Chunk& chunk, int64_t index, int64_t kv_head, int64_t part, int64_t head_size)
      : head_size(head_size), width(rounded_up(head_size, kPanel)) {
    const int64_t token = index * chunk.tokens_at_once;
    tokens = std::min(chunk.tokens_at_once, chunk.length - token);
    heads = std::min(chunk.heads_at_once, chunk.group - part * chunk.heads_at_once);
    first_head = kv_head * chunk.group + part * chunk.heads_at_once;
    position = chunk.prefix + token;
    rows = tokens * heads;
    padded = rounded_up(rows, kTileRows);
    std::fill(queries, queries + padded * head_size, 0.0f);
    std::fill(scores, scores + padded * kKeys, 0.0f);
    std::fill(keep, keep + kQueryRows, 0.0f);
    for (int64_t m = 0; m < rows; ++m) {
      const float* query =
          chunk.queries + (token + m / heads) * chunk.query_stride + head_of(m) * head_size;
      for (int64_t d = 0; d < head_size; ++d)
        queries[m * head_size + d] = query[d] * (chunk.scale * kLog2E);
    }
  }

  int64_t head_of(int64_t row) const { return first_head + row % heads; }
};

void clear(const Tile& tile, Found& found) {
  std::fill(found.sums, found.sums + tile.padded * tile.width, 0.0f);
  std::fill(found.most, found.most + kQueryRows, kHidden);
  std::fill(found.weight, found.weight + kQueryRows, 0.0f);
}

// Hides what a query at `position` must not see among `count` keys from `first` on.
void hide(float* scores, int64_t first, int64_t count, int64_t position, int64_t window) {
  for (int64_t j = std::max<int64_t>(0, position + 1 - first); j < count; ++j) scores[j] = kHidden;
  if (window <= 0) return;
  const int64_t unseen = std::min(count, position + 1 - window - first);
  for (int64_t j = 0; j < unseen; ++j) scores[j] = kHidden;
}

// Scores become weights; the row's running maximum and sum of weights go on.
void weigh(Tile& tile, Found& found, int64_t m, int64_t count) {
  float* scores = tile.scores + m * kKeys;
  Vector most_of = load(scores);
  for (int64_t j = kLanes; j < count; j += kLanes) most_of = larger(most_of, load(scores + j));
  const float most = std::max(found.most[m], largest(most_of));
  Vector sum{};
  for (int64_t j = 0; j < count; j += kLanes) {
    const Vector weight = power_of_two(load(scores + j) - most);
    save(scores + j, weight);
    sum += weight;
  }
  tile.keep[m] = power_of_two(found.most[m] - most);
  found.weight[m] = found.weight[m] * tile.keep[m] + total(sum);
  found.most[m] = most;
}

// The tile against packed keys [first, first + count), count a multiple of kPanel.
void attend(Tile& tile, Found& found, const Packed& packed, int64_t first, int64_t count,
            int64_t window) {
  const int64_t size = tile.head_size, width = tile.width, offset = first - packed.first;
  for (int64_t j = 0; j < count; j += kPanel) {
    for (int64_t m = 0; m < tile.padded; m += kTileRows)
      multiply<kTileRows>(tile.queries + m * size, size, packed.keys + (offset + j) * size, kPanel,
                          size, tile.scores + m * kKeys + j, kKeys, nullptr);
  }
  for (int64_t m = 0; m < tile.rows; ++m) {
    hide(tile.scores + m * kKeys, first, count, tile.position + m / tile.heads, window);
    weigh(tile, found, m, count);
  }
  for (int64_t d = 0; d < width; d += kPanel) {
    for (int64_t m = 0; m < tile.padded; m += kTileRows)
      multiply<kTileRows>(tile.scores + m * kKeys, kKeys, packed.values + offset * width + d, width,
                          count, found.sums + m * width + d, width, tile.keep + m);
  }
}

// The tile against what it sees of part `part`; false: nothing.
bool attend_part(Tile& tile, Found& found, const Packed& packed, int64_t part, int64_t window) {
  const int64_t seen_from = window > 0 ? std::max<int64_t>(0, tile.position + 1 - window) : 0;
  const int64_t seen_to = rounded_up(tile.position + tile.tokens, kPanel);
  const int64_t begin = std::max(part * kPartKeys, seen_from / kKeys * kKeys);
  const int64_t end = std::min((part + 1) * kPartKeys, seen_to);
  if (begin >= end) return false;
  clear(tile, found);
  for (int64_t at = begin; at < end; at += kKeys)
    attend(tile, found, packed, at, std::min(kKeys, end - at), window);
  return true;
}

// Adds what a later part found to what earlier ones did.
void merge(const Tile& tile, Found& to, const Found& from) {
  for (int64_t m = 0; m < tile.rows; ++m) {
    const float most = std::max(to.most[m], from.most[m]);
    const float old = power_of_two(to.most[m] - most), young = power_of_two(from.most[m] - most);
    to.most[m] = most;
    to.weight[m] = to.weight[m] * old + from.weight[m] * young;
    float* sums = to.sums + m * tile.width;
    const float* more = from.sums + m * tile.width;
    for (int64_t d = 0; d < tile.width; d += kLanes)
      save(sums + d, load(sums + d) * old + load(more + d) * young);
  }
}

void write(const Tile& tile, const Found& found, const Chunk& chunk) {
  const int64_t token = tile.position - chunk.prefix;
  for (int64_t m = 0; m < tile.rows; ++m) {
    float* to = chunk.out + ((token + m / tile.heads) * chunk.num_heads + tile.head_of(m)) *
                                tile.head_size;
    const float share = 1.0f / found.weight[m];
    for (int64_t d = 0; d < tile.head_size; ++d) to[d] = found.sums[m * tile.width + d] * share;
  }
}

// One token's key or value as float32.
template <class Format>
inline void widen(const Pages& pages, int64_t slot, float* to) {
  const auto* from = static_cast<const typename Format::Stored*>(pages.data) + slot * pages.head_size;
  float scale = 1.0f;
  if constexpr (Format::kScaled) scale = pages.scales[slot];
  int64_t d = 0;
  for (; d + kLanes <= pages.head_size; d += kLanes) save(to + d, Format::widen(from + d) * scale);
  for (; d < pages.head_size; ++d) to[d] = Format::widen(from[d]) * scale;
}

// Packs one panel of keys and its values, from position `first` on.
template <class Format>
void pack_panel(const Chunk& chunk, const Pages& pages, int64_t head, int64_t first, float* keys,
                float* values) {
  const int64_t size = pages.head_size, width = rounded_up(size, kPanel);
  float rows[kPanel * kLongestHead];
  for (int64_t j = 0; j < kPanel; ++j) {
    const int64_t position = first + j;
    float* value = values + j * width;
    std::fill(value, value + width, 0.0f);
    if (position >= chunk.context()) {  // hidden from all, but no NaN may stand there
      std::fill(rows + j * size, rows + (j + 1) * size, 0.0f);
      continue;
    }
    const int64_t block = chunk.table[position / pages.block_size];
    const int64_t offset = position % pages.block_size;
    widen<Format>(pages, pages.first_slot(block, 0, head) + offset, rows + j * size);
    widen<Format>(pages, pages.first_slot(block, 1, head) + offset, value);
  }
  for (int64_t d = 0; d < size; ++d) {
    for (int64_t j = 0; j < kPanel; ++j) keys[d * kPanel + j] = rows[j * size + d];
  }
}

// Packs the keys of a part that exist.
template <class Format>
void pack_part(const Chunk& chunk, const Pages& pages, int64_t head, int64_t part,
               const Packed& to) {
  const int64_t size = pages.head_size, width = rounded_up(size, kPanel);
  const int64_t end = std::min((part + 1) * kPartKeys, rounded_up(chunk.context(), kPanel));
  for (int64_t at = part * kPartKeys; at < end; at += kPanel)
    pack_panel<Format>(chunk, pages, head, at, to.keys + (at - to.first) * size,
                       to.values + (at - to.first) * width);
}

// Many tiles: the context is packed once, then tiles are shared out.
template <class Format>
void share_tiles(const Chunk& chunk, const Pages& pages) {
  const int64_t first = chunk.first_part() * kPartKeys, size = pages.head_size;
  const int64_t width = rounded_up(size, kPanel), heads = pages.num_kv_heads;
  const int64_t num_keys = rounded_up(chunk.context(), kPanel) - first;
  const std::unique_ptr<float[]> keys(new float[heads * num_keys * size]);
  const std::unique_ptr<float[]> values(new float[heads * num_keys * width]);
  const auto packed = [&](int64_t head) {
    return Packed{keys.get() + head * num_keys * size, values.get() + head * num_keys * width,
                  first};
  };
#pragma omp parallel
  {
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t part = chunk.first_part(); part < chunk.end_part(); ++part)
        pack_part<Format>(chunk, pages, head, part, packed(head));
    }
    const std::unique_ptr<Found> all(new Found), found(new Found);
#pragma omp for collapse(3) schedule(dynamic, 1)
    for (int64_t back = 0; back < chunk.num_tiles; ++back) {  // the longest first
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t group_part = 0; group_part < chunk.head_parts; ++group_part) {
          const std::unique_ptr<Tile> tile(
              new Tile(chunk, chunk.num_tiles - 1 - back, head, group_part, size));
          clear(*tile, *all);
          for (int64_t part = chunk.first_part(); part < chunk.end_part(); ++part) {
            if (attend_part(*tile, *found, packed(head), part, chunk.window))
              merge(*tile, *all, *found);
          }
          write(*tile, *all, chunk);
        }
      }
    }
  }
}

// Few tiles: parts are shared out, and packed by who attends with them.
template <class Format>
void share_parts(const Chunk& chunk, const Pages& pages) {
  const int64_t size = pages.head_size, width = rounded_up(size, kPanel);
  const int64_t first = chunk.first_part(), num_parts = chunk.end_part() - first;
  const int64_t tiles = chunk.num_tiles * chunk.head_parts;  // of a KV head
  const int64_t num_tiles = pages.num_kv_heads * tiles;
  // Of each tile and part, and whether the tile saw anything of the part.
  const std::unique_ptr<Found[]> found(new Found[num_tiles * num_parts]);
  const std::unique_ptr<bool[]> saw(new bool[num_tiles * num_parts]);
  const auto tile_at = [&](int64_t index) {
    return std::unique_ptr<Tile>(new Tile(chunk, index % tiles / chunk.head_parts, index / tiles,
                                          index % chunk.head_parts, size));
  };
#pragma omp parallel
  {
    const std::unique_ptr<float[]> keys(new float[kPartKeys * size]);
    const std::unique_ptr<float[]> values(new float[kPartKeys * width]);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t part = 0; part < num_parts; ++part) {
      for (int64_t head = 0; head < pages.num_kv_heads; ++head) {
        const Packed packed{keys.get(), values.get(), (first + part) * kPartKeys};
        pack_part<Format>(chunk, pages, head, first + part, packed);
        for (int64_t index = head * tiles; index < (head + 1) * tiles; ++index) {
          const auto tile = tile_at(index);
          const int64_t at = index * num_parts + part;
          saw[at] = attend_part(*tile, found[at], packed, first + part, chunk.window);
        }
      }
    }
    const std::unique_ptr<Found> all(new Found);
#pragma omp for schedule(dynamic, 1)
    for (int64_t index = 0; index < num_tiles; ++index) {
      const auto tile = tile_at(index);
      clear(*tile, *all);
      for (int64_t at = index * num_parts; at < (index + 1) * num_parts; ++at) {
        if (saw[at]) merge(*tile, *all, found[at]);
      }
      write(*tile, *all, chunk);
    }
  }
}

}  // namespace

extern "C" int64_t atom_lite_prefill_longest_head() { return kLongestHead; }

// `prefix` tokens stand before the chunk's `length`; window 0 sees all.
extern "C" void atom_lite_prefill_attention(
    const float* queries, int64_t query_stride, const void* pages, const float* scales,
    int64_t format, const int64_t* table, float* out, int64_t prefix, int64_t length,
    int64_t num_heads, int64_t num_kv_heads, int64_t block_size, int64_t head_size, float scale,
    int64_t window) {
  const Pages cache{pages, scales, num_kv_heads, block_size, head_size};
  const int64_t group = num_heads / num_kv_heads, heads = std::min(group, kQueryRows);
  const int64_t tokens = kQueryRows / heads;
  const Chunk chunk{queries, table,  out,   query_stride, prefix,
                    length,  num_heads, group, window, scale,
                    heads,   tokens, (group + heads - 1) / heads, (length + tokens - 1) / tokens};
  with_format(format, [&](auto kind) {
    using Format = decltype(kind);
    const bool few = chunk.num_tiles * chunk.head_parts < kFewTiles;
    (few ? share_parts<Format> : share_tiles<Format>)(chunk, cache);
  });
}
