// Linear layers in float32 on a CPU: x [M, K] times a weight packed into panels of columns.
//
// A panel holds kPanel output columns, K rows of kPanel numbers each, so that a tile of a few rows
// of x keeps its sums in registers and reads the weight once, in order. The same sums are made in the
// same order whatever M is: a row's result does not depend on its company, to the bit.
//
//   plain   y = x W^T + bias        panel p holds columns p * kPanel ...
//   added   y += x W^T + bias       the residual stream takes the result at once
//   gated   y = silu(gate) * up     panel p holds kLanes columns of gate, then the same ones of up
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <algorithm>
#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16, kRows = 12;
#else
constexpr int64_t kLanes = 8, kRows = 6;
#endif
constexpr int64_t kPanel = 2 * kLanes;
// Rows of x that pass by all panels together: they stay in a core's second-level cache.
constexpr int64_t kBlockBytes = 192 << 10;

typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4)));

enum class Store { kPlain, kAdded, kGated };

struct Shape {
  int64_t rows, inner, outer;  // M, K, columns of y
  int64_t x_stride, y_stride;
};

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void save(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

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
template <Store kStore>
inline void store(Vector left, Vector right, float* y, int64_t count) {
  if (kStore == Store::kGated) left = silu(left) * right;
  if (count == (kStore == Store::kGated ? kLanes : kPanel)) {
    save(y, kStore == Store::kAdded ? load(y) + left : left);
    if (kStore == Store::kGated) return;
    save(y + kLanes, kStore == Store::kAdded ? load(y + kLanes) + right : right);
    return;
  }
  float sums[kPanel];
  save(sums, left);
  save(sums + kLanes, right);
  for (int64_t i = 0; i < count; ++i) y[i] = kStore == Store::kAdded ? y[i] + sums[i] : sums[i];
}

template <Store kStore, int64_t kTile>
void tile(const float* x, const Shape& shape, const float* panel, const float* bias, float* y,
          int64_t count) {
  Vector sums[kTile][2] = {};
  for (int64_t k = 0; k < shape.inner; ++k, panel += kPanel) {
    const Vector left = load(panel), right = load(panel + kLanes);
#pragma GCC unroll 12
    for (int64_t r = 0; r < kTile; ++r) {
      const float factor = x[r * shape.x_stride + k];
      sums[r][0] += factor * left;
      sums[r][1] += factor * right;
    }
  }
#pragma GCC unroll 12
  for (int64_t r = 0; r < kTile; ++r) {
    if (bias != nullptr) {
      sums[r][0] += load(bias);
      sums[r][1] += load(bias + kLanes);
    }
    store<kStore>(sums[r][0], sums[r][1], y + r * shape.y_stride, count);
  }
}

template <Store kStore, int64_t kTile = kRows>
void tile_of(int64_t rows, const float* x, const Shape& shape, const float* panel,
             const float* bias, float* y, int64_t count) {
  if constexpr (kTile > 1) {
    if (rows < kTile)
      return tile_of<kStore, kTile - 1>(rows, x, shape, panel, bias, y, count);
  }
  tile<kStore, kTile>(x, shape, panel, bias, y, count);
}

template <Store kStore>
void multiply(const float* x, const Shape& shape, const float* panels, const float* bias,
              float* y) {
  const int64_t width = kStore == Store::kGated ? kLanes : kPanel;  // columns of y in a panel
  const int64_t num_panels = (shape.outer + width - 1) / width;
  const int64_t fitting = kBlockBytes / (4 * shape.inner) / kRows * kRows;
  const int64_t block = std::max(kRows, fitting);
#pragma omp parallel
  for (int64_t first = 0; first < shape.rows; first += block) {
    const int64_t rows = std::min(block, shape.rows - first);
    const int64_t tiles = (rows + kRows - 1) / kRows;
#pragma omp for schedule(static) nowait
    for (int64_t p = 0; p < num_panels; ++p) {
      const int64_t count = std::min(width, shape.outer - p * width);
      const float* panel = panels + p * shape.inner * kPanel;
      for (int64_t t = 0; t < tiles; ++t) {  // tiles of even height: a low one wastes the core
        const int64_t begin = first + rows * t / tiles, end = first + rows * (t + 1) / tiles;
        tile_of<kStore>(end - begin, x + begin * shape.x_stride, shape, panel,
                        bias ? bias + p * kPanel : nullptr,
                        y + begin * shape.y_stride + p * width, count);
      }
    }
  }
}

}  // namespace

extern "C" int64_t atom_lite_linear_panel() { return kPanel; }

// mode 0 plain, 1 added, 2 gated. bias is null or padded to whole panels, in the panels' order.
extern "C" void atom_lite_linear_f32(const float* x, int64_t x_stride, const float* panels,
                                     const float* bias, float* y, int64_t y_stride, int64_t rows,
                                     int64_t inner, int64_t outer, int64_t mode) {
  const Shape shape{rows, inner, outer, x_stride, y_stride};
  const auto multiply_as = mode == 0   ? multiply<Store::kPlain>
                           : mode == 1 ? multiply<Store::kAdded>
                                       : multiply<Store::kGated>;
  multiply_as(x, shape, panels, bias, y);
}
