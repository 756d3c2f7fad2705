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
#include <cmath>
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

enum class Store { kPlain, kAdded, kGated };

struct Shape {
  int64_t rows, inner, outer;  // M, K, columns of y
  int64_t x_stride, y_stride;
};

// Writes the sums of one row; `count` columns of the panel exist.
template <Store kStore>
inline void store(const float* sums, const float* bias, float* y, int64_t count) {
  if (kStore == Store::kGated) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float gate = sums[i] + (bias ? bias[i] : 0.0f);
      const float up = sums[kLanes + i] + (bias ? bias[kLanes + i] : 0.0f);
      // beyond 80 exp would overflow, and dividing by infinity is no fast math
      y[i] = gate / (1.0f + std::exp(std::min(-gate, 80.0f))) * up;
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float sum = sums[i] + (bias ? bias[i] : 0.0f);
    y[i] = kStore == Store::kAdded ? y[i] + sum : sum;
  }
}

template <Store kStore, int64_t kTile>
void tile(const float* x, const Shape& shape, const float* panel, const float* bias, float* y,
          int64_t count) {
  Vector sums[kTile][2] = {};
  for (int64_t k = 0; k < shape.inner; ++k, panel += kPanel) {
    const Vector left = *reinterpret_cast<const Vector*>(panel);
    const Vector right = *reinterpret_cast<const Vector*>(panel + kLanes);
#pragma GCC unroll 12
    for (int64_t r = 0; r < kTile; ++r) {
      const float factor = x[r * shape.x_stride + k];
      sums[r][0] += factor * left;
      sums[r][1] += factor * right;
    }
  }
#pragma GCC unroll 12
  for (int64_t r = 0; r < kTile; ++r) {
    float row[kPanel];
    *reinterpret_cast<Vector*>(row) = sums[r][0];
    *reinterpret_cast<Vector*>(row + kLanes) = sums[r][1];
    store<kStore>(row, bias, y + r * shape.y_stride, count);
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
