// The small operations between a decoder's matrices: odd sizes, rows of wider matrices, no rows.

#include "drive.h"
#include "kernels.h"

namespace {

constexpr float kEpsilon = 1e-5f;

void norm(int64_t rows, int64_t size, int64_t stride) {
  const std::vector<float> x = numbers(extent(rows, size, stride)), weight = numbers(size);
  std::vector<float> out(rows * size);
  atom_lite_rms_norm_f32(x.data(), stride, weight.data(), out.data(), rows, size, kEpsilon);
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0.0;
    for (int64_t i = 0; i < size; ++i) squares += double(x[row * stride + i]) * x[row * stride + i];
    const double scale = 1.0 / std::sqrt(squares / size + kEpsilon);
    for (int64_t i = 0; i < size; ++i)
      expect_near(out[row * size + i], x[row * stride + i] * scale * weight[i], 1e-5, "rms_norm");
  }
}

void rotate(int64_t rows, int64_t heads, int64_t head_size) {
  const int64_t size = heads * head_size, stride = size + 3, half = head_size / 2;
  const std::vector<float> before = numbers(extent(rows, size, stride));
  const std::vector<float> cos = numbers(rows * head_size), sin = numbers(rows * head_size);
  std::vector<float> x = before;
  atom_lite_rotate_f32(x.data(), stride, cos.data(), sin.data(), rows, heads, head_size);
  for (int64_t at = 0; at < static_cast<int64_t>(x.size()); ++at) {
    const int64_t row = at / stride, column = at % stride, i = column % head_size;
    if (column >= size) {
      expect_same(x[at], before[at], "rotate, between rows");
      continue;
    }
    const int64_t other = i < half ? at + half : at - half, angle = row * head_size + i;
    expect_near(x[at], double(before[at]) * cos[angle] + double(before[other]) * sin[angle], 1e-6,
                "rotate");
  }
}

}  // namespace

void drive_elementwise() {
  for (const int64_t rows : {0, 1, 5, 33}) {  // 33 rows are shared out over threads
    for (const int64_t size : {1, 12, 257}) {
      norm(rows, size, size);
      norm(rows, size, 2 * size + 1);
    }
    for (const int64_t head_size : {2, 10, 64}) rotate(rows, 5, head_size);
  }
}
