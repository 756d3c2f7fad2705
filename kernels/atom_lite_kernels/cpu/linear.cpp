// Linear layers on a CPU: x [M, K] in float32 times a weight in panels of columns.
//
// A panel holds kPanel output columns, K rows of kPanel numbers each, so that a tile of a few rows
// of x keeps its sums in registers and reads the weight once, in order. The weight lies there in one
// of the formats below and becomes float32 on the way: in registers where one tile holds all rows of
// x, else once per panel in a buffer that all tiles read. Both do the same arithmetic in the same
// order whatever M is: a row's result does not depend on its company, to the bit.
//
//   plain   y = x W^T + bias        panel p holds columns p * kPanel ...
//   added   y += x W^T + bias       the residual stream takes the result at once
//   gated   y = silu(gate) * up     panel p holds kLanes columns of gate, then the same ones of up
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "team.h"

namespace {

using namespace atom_lite;

// Rows of x whose sums fit the registers: beside nothing else, beside a weight that is widened there,
// and for two panels at once.
#if defined(__AVX512F__) || ATOM_LITE_LANES == 16  // set by hand: see vectors.h
constexpr int64_t kLanes = 16, kRows = 12, kWidenedRows = 12, kRowsOfTwoPanels = 6;
#elif defined(__AVX__)
constexpr int64_t kLanes = 8, kRows = 6, kWidenedRows = 4, kRowsOfTwoPanels = 2;
#else
constexpr int64_t kLanes = 4, kRows = 6, kWidenedRows = 4, kRowsOfTwoPanels = 2;
#endif
constexpr int64_t kPanel = 2 * kLanes;
// Rows of x that pass by all panels together: they stay in a core's second-level cache. Widened
// panels lie there too, and widening them again for the next rows costs more than a colder x.
constexpr int64_t kBlockBytes = 192 << 10, kWidenedBlockBytes = 768 << 10;

typedef float Vector __attribute__((vector_size(kLanes * 4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));

using Half = uint16_t;  // the bits of a float16

struct Weight {
  const void* data;    // [panels, K, kPanel], in the order that its format says
  const void* scales;  // [panels, groups of K, ...]; null for float formats
  const float* bias;   // null, or padded to whole panels, in the panels' order
  int64_t inner;       // K
};

struct Shape {
  int64_t rows, outer;  // M, columns of y
  int64_t x_stride, y_stride;
  Mode mode;

  int64_t width() const { return mode == kGated ? kLanes : kPanel; }  // columns of y in a panel
  int64_t panels() const { return (outer + width() - 1) / width(); }
};

// From memory of any alignment, which a vector type loses as a template's argument.
template <class T>
inline T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
inline Vector load(const float* from) { return load_as<Vector>(from); }
inline void save(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

// The next kPanel scales: float32, or float16 where that loses nothing, laid out as bfloat16 is;
// those are finite.
inline void read_scales(const float*& next, Vector (&scale)[2]) {
  scale[0] = load(next), scale[1] = load(next + kLanes), next += kPanel;
}
inline Vector from_half(Words bits) {  // in the upper 16 bits
  const Vector value = (Vector)((bits & 0x7fff0000u) >> 3) * 0x1p112f;
  return (Vector)((Words)value | (bits & 0x80000000u));
}
inline void read_scales(const Half*& next, Vector (&scale)[2]) {
  const Words word = load_as<Words>(next);
  scale[0] = from_half(word << 16), scale[1] = from_half(word), next += kPanel;
}

// The formats. Each reads one panel from its start to its end: `open_group` every kGroup rows (0:
// never), `fetch` every kStep rows, then `widen` gives the halves of row s of that step.

struct Float32 {
  static constexpr int64_t kGroup = 0, kStep = 1;
  const float* next;
  const float* row;

  Float32(const Weight& weight, int64_t panel)
      : next(static_cast<const float*>(weight.data) + panel * weight.inner * kPanel), row(next) {}
  void open_group() {}
  void fetch() { row = next, next += kPanel; }
  void widen(int64_t, Vector& left, Vector& right) const {
    left = load(row), right = load(row + kLanes);
  }
};

// Lane i of a row's word holds column i in its low half and column kLanes + i in its high one.
struct Bfloat16 {
  static constexpr int64_t kGroup = 0, kStep = 1;
  const uint16_t* next;
  Words word{};

  Bfloat16(const Weight& weight, int64_t panel)
      : next(static_cast<const uint16_t*>(weight.data) + panel * weight.inner * kPanel) {}
  void open_group() {}
  void fetch() { word = load_as<Words>(next), next += kPanel; }
  void widen(int64_t, Vector& left, Vector& right) const {
    left = (Vector)(word << 16), right = (Vector)(word & 0xffff0000u);
  }
};

// quant * scale + minimum, quants from 0 to 15, 32 rows to a group. Lane i of a step's word holds
// four rows of columns i and kLanes + i: byte s is row s, its low half the left column. A group's
// scales are kPanel scales, then kPanel minima.
template <class Scale>
struct FourBits {
  static constexpr int64_t kGroup = 32, kStep = 4;
  const uint8_t* next;
  const Scale* next_scales;
  Words word{};
  Vector scale[2]{}, minimum[2]{};

  FourBits(const Weight& weight, int64_t panel)
      : next(static_cast<const uint8_t*>(weight.data) + panel * weight.inner * kPanel / 2),
        next_scales(static_cast<const Scale*>(weight.scales) +
                    panel * (weight.inner / kGroup) * 2 * kPanel) {}
  void open_group() {
    read_scales(next_scales, scale);
    read_scales(next_scales, minimum);
  }
  void fetch() { word = load_as<Words>(next), next += kLanes * 4; }
  void widen(int64_t s, Vector& left, Vector& right) const {
    const Integers low = (Integers)((word >> (8 * s)) & 15u);
    const Integers high = (Integers)((word >> (8 * s + 4)) & 15u);
    left = __builtin_convertvector(low, Vector) * scale[0] + minimum[0];
    right = __builtin_convertvector(high, Vector) * scale[1] + minimum[1];
  }
};

// quant * scale, quants from -128 to 127. Lane i of a step's word holds two rows of columns i and
// kLanes + i: bytes 2 s and 2 s + 1 are those of row s. A group's scales are kPanel numbers.
template <class Scale, int64_t kRowsOfGroup>
struct EightBits {
  static constexpr int64_t kGroup = kRowsOfGroup, kStep = 2;
  const int8_t* next;
  const Scale* next_scales;
  Integers word{};
  Vector scale[2]{};

  EightBits(const Weight& weight, int64_t panel)
      : next(static_cast<const int8_t*>(weight.data) + panel * weight.inner * kPanel),
        next_scales(static_cast<const Scale*>(weight.scales) +
                    panel * (weight.inner / kGroup) * kPanel) {}
  void open_group() { read_scales(next_scales, scale); }
  void fetch() { word = load_as<Integers>(next), next += kLanes * 4; }
  void widen(int64_t s, Vector& left, Vector& right) const {
    left = __builtin_convertvector((word << (24 - 16 * s)) >> 24, Vector) * scale[0];
    right = __builtin_convertvector((word << (16 - 16 * s)) >> 24, Vector) * scale[1];
  }
};

// x / (1 + exp(-x)). exp is 2^n * 2^f with |f| <= 1/2 and the series of 2^f; relative error 1e-6. It
// stays inside of what 2^n can be: beyond, the result is x or 0 anyway.
inline Vector silu(Vector x) {
  Vector exponent = x * -1.44269504f;
  exponent = exponent > 120.0f ? Vector{} + 120.0f : exponent;
  exponent = exponent < -120.0f ? Vector{} - 120.0f : exponent;
  const Vector half = exponent > 0.0f ? Vector{} + 0.5f : Vector{} - 0.5f;
  const Integers n = __builtin_convertvector(exponent + half, Integers);
  const Vector f = exponent - __builtin_convertvector(n, Vector);
  Vector power = f * 1.5403530e-4f + 1.3333558e-3f;
  power = power * f + 9.6181291e-3f;
  power = power * f + 5.5504109e-2f;
  power = power * f + 2.4022651e-1f;
  power = power * f + 6.9314718e-1f;
  power = power * f + 1.0f;
  const Vector scale = (Vector)((n + 127) << 23);
  return x / (1.0f + power * scale);
}

// Writes the sums of one row, bias included: `count` columns of the panel exist.
inline void store(Mode mode, Vector left, Vector right, float* y, int64_t count) {
  if (mode == kGated) left = silu(left) * right;
  if (count == (mode == kGated ? kLanes : kPanel)) {
    save(y, mode == kAdded ? load(y) + left : left);
    if (mode == kGated) return;
    save(y + kLanes, mode == kAdded ? load(y + kLanes) + right : right);
    return;
  }
  float sums[kPanel];
  save(sums, left);
  save(sums + kLanes, right);
  for (int64_t i = 0; i < count; ++i) y[i] = mode == kAdded ? y[i] + sums[i] : sums[i];
}

// kTile rows of x times kWide panels: few rows take two, as one panel's sums alone would wait for each
// other.
template <class Reader, int64_t kTile, int64_t kWide>
void tile(const float* x, const Shape& shape, const Weight& weight, const int64_t (&panels)[kWide],
          Reader (&readers)[kWide], float* y) {
  Vector sums[kTile][kWide][2];
#pragma GCC unroll 12
  for (int64_t r = 0; r < kTile; ++r) {  // one by one: cleared as memory, they would stay there
#pragma GCC unroll 2
    for (int64_t w = 0; w < kWide; ++w) sums[r][w][0] = sums[r][w][1] = Vector{};
  }
  const int64_t group = Reader::kGroup == 0 ? weight.inner : Reader::kGroup;
  for (int64_t first = 0; first < weight.inner; first += group) {
#pragma GCC unroll 2
    for (int64_t w = 0; w < kWide; ++w) readers[w].open_group();
    for (int64_t k = first; k < first + group; k += Reader::kStep) {
#pragma GCC unroll 2
      for (int64_t w = 0; w < kWide; ++w) readers[w].fetch();
#pragma GCC unroll 4
      for (int64_t s = 0; s < Reader::kStep; ++s) {
#pragma GCC unroll 2
        for (int64_t w = 0; w < kWide; ++w) {
          Vector left, right;
          readers[w].widen(s, left, right);
#pragma GCC unroll 12
          for (int64_t r = 0; r < kTile; ++r) {
            const float factor = x[r * shape.x_stride + k + s];
            sums[r][w][0] += factor * left;
            sums[r][w][1] += factor * right;
          }
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int64_t w = 0; w < kWide; ++w) {
    const int64_t column = panels[w] * shape.width();
    const int64_t count = std::min(shape.width(), shape.outer - column);
    const float* bias = weight.bias == nullptr ? nullptr : weight.bias + panels[w] * kPanel;
#pragma GCC unroll 12
    for (int64_t r = 0; r < kTile; ++r) {
      if (bias != nullptr) {
        sums[r][w][0] += load(bias);
        sums[r][w][1] += load(bias + kLanes);
      }
      store(shape.mode, sums[r][w][0], sums[r][w][1], y + r * shape.y_stride + column, count);
    }
  }
}

template <class Reader, int64_t kWide, int64_t kTile>
void tile_of(int64_t rows, const float* x, const Shape& shape, const Weight& weight,
             const int64_t (&panels)[kWide], Reader (&readers)[kWide], float* y) {
  if constexpr (kTile > 1) {
    if (rows < kTile)
      return tile_of<Reader, kWide, kTile - 1>(rows, x, shape, weight, panels, readers, y);
  }
  tile<Reader, kTile, kWide>(x, shape, weight, panels, readers, y);
}

template <class Reader>
constexpr int64_t kFewRows = std::is_same_v<Reader, Float32> ? kRows : kWidenedRows;

// At most kFewRows: every weight is widened once, in registers. Where that leaves room for
// two panels, they come from the two halves of the weight: so a thread reads two long runs of memory,
// which the processor fetches ahead. Of neighbouring panels each would end after a few kilobytes.
template <class Reader>
void multiply_few(const float* x, const Shape& shape, const Weight& weight, float* y) {
  const int64_t num_panels = shape.panels();
  if (shape.rows > kRowsOfTwoPanels) {
#pragma omp for schedule(static) nowait
    for (int64_t p = 0; p < num_panels; ++p) {
      Reader readers[1] = {Reader(weight, p)};
      tile_of<Reader, 1, kFewRows<Reader>>(shape.rows, x, shape, weight, {p}, readers, y);
    }
    return;
  }
  const int64_t half = (num_panels + 1) / 2;
#pragma omp for schedule(static) nowait
  for (int64_t p = 0; p < half; ++p) {
    if (p + half < num_panels) {
      Reader readers[2] = {Reader(weight, p), Reader(weight, p + half)};
      tile_of<Reader, 2, kRowsOfTwoPanels>(shape.rows, x, shape, weight, {p, p + half}, readers, y);
    } else {
      Reader readers[1] = {Reader(weight, p)};
      tile_of<Reader, 1, kRowsOfTwoPanels>(shape.rows, x, shape, weight, {p}, readers, y);
    }
  }
}

template <class Reader>
void widen_panel(const Weight& weight, int64_t p, float* to) {
  Reader panel(weight, p);
  const int64_t group = Reader::kGroup == 0 ? weight.inner : Reader::kGroup;
  for (int64_t first = 0; first < weight.inner; first += group) {
    panel.open_group();
    for (int64_t k = first; k < first + group; k += Reader::kStep) {
      panel.fetch();
#pragma GCC unroll 4
      for (int64_t s = 0; s < Reader::kStep; ++s, to += kPanel) {
        Vector left, right;
        panel.widen(s, left, right);
        save(to, left);
        save(to + kLanes, right);
      }
    }
  }
}

template <class Reader>
void multiply_many(const float* x, const Shape& shape, const Weight& weight, float* y) {
  constexpr bool kWidens = !std::is_same_v<Reader, Float32>;
  const int64_t num_panels = shape.panels();
  const int64_t block_bytes = kWidens ? kWidenedBlockBytes : kBlockBytes;
  const int64_t block = std::max(kRows, block_bytes / (4 * weight.inner) / kRows * kRows);
  std::vector<float> buffer(kWidens ? weight.inner * kPanel : 0);  // each thread's own
  Weight widened = weight;
  widened.data = buffer.data();
  for (int64_t first = 0; first < shape.rows; first += block) {
    const int64_t rows = std::min(block, shape.rows - first);
    const int64_t tiles = (rows + kRows - 1) / kRows;
#pragma omp for schedule(static) nowait
    for (int64_t p = 0; p < num_panels; ++p) {
      if (kWidens) widen_panel<Reader>(weight, p, buffer.data());
      for (int64_t t = 0; t < tiles; ++t) {  // tiles of even height: a low one wastes the core
        const int64_t begin = first + rows * t / tiles, end = first + rows * (t + 1) / tiles;
        Float32 readers[1] = {kWidens ? Float32(widened, 0) : Float32(weight, p)};
        tile_of<Float32, 1, kRows>(end - begin, x + begin * shape.x_stride, shape, weight, {p},
                                   readers, y + begin * shape.y_stride);
      }
    }
  }
}

template <class Reader>
void multiply_any(const float* x, const Shape& shape, const Weight& weight, float* y) {
  const bool few = shape.rows <= kFewRows<Reader>;
  (few ? multiply_few<Reader> : multiply_many<Reader>)(x, shape, weight, y);
}

// Column ids[i] of the weight, as a row of `out` [count, K].
template <class Reader>
void gather(const Weight& weight, const int64_t* ids, int64_t count, float* out) {
#pragma omp parallel if (count >= 8)
  {
    std::vector<float> buffer(weight.inner * kPanel);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) {
      widen_panel<Reader>(weight, ids[i] / kPanel, buffer.data());
      const float* column = buffer.data() + ids[i] % kPanel;
      for (int64_t k = 0; k < weight.inner; ++k) out[i * weight.inner + k] = column[k * kPanel];
    }
  }
}

// By format: float32, bfloat16, four bits with scales in float16 and in float32, eight bits with
// scales in float16 for 32 rows and in float32 for 16.
constexpr decltype(&multiply_any<Float32>) kMultiply[] = {
    multiply_any<Float32>,         multiply_any<Bfloat16>,
    multiply_any<FourBits<Half>>,  multiply_any<FourBits<float>>,
    multiply_any<EightBits<Half, 32>>, multiply_any<EightBits<float, 16>>,
};
constexpr decltype(&gather<Float32>) kGather[] = {
    gather<Float32>,         gather<Bfloat16>,
    gather<FourBits<Half>>,  gather<FourBits<float>>,
    gather<EightBits<Half, 32>>, gather<EightBits<float, 16>>,
};

}  // namespace

void atom_lite::multiply(const Matrix& matrix, const float* x, int64_t x_stride, float* y,
                         int64_t y_stride, int64_t rows, Mode mode) {
  if (rows == 0) return;  // a tile holds one at least
  const Weight weight{matrix.data, matrix.scales, matrix.bias, matrix.inner};
  kMultiply[matrix.format](x, Shape{rows, matrix.outer, x_stride, y_stride, mode}, weight, y);
}

extern "C" int64_t atom_lite_linear_panel() { return kPanel; }

// y and x have rows `x_stride` and `y_stride` apart.
extern "C" void atom_lite_linear(int64_t format, const void* data, const void* scales,
                                 const float* bias, const float* x, int64_t x_stride, float* y,
                                 int64_t y_stride, int64_t rows, int64_t inner, int64_t outer,
                                 int64_t mode) {
  const Matrix matrix{format, data, scales, bias, inner, outer};
#pragma omp parallel
  multiply(matrix, x, x_stride, y, y_stride, rows, static_cast<Mode>(mode));
}

// Columns `ids` [count] of a weight that is not gated, into out [count, K].
extern "C" void atom_lite_linear_columns(int64_t format, const void* data, const void* scales,
                                         const int64_t* ids, float* out, int64_t count,
                                         int64_t inner) {
  kGather[format](Weight{data, scales, nullptr, inner}, ids, count, out);
}
