// The small operations between a decoder's matrices, in float32 on a CPU: each one pass over memory.
//
//   rms_norm   out[t] = x[t] / sqrt(mean(x[t]^2) + epsilon) * weight
//   rotate     heads x[t] turned in place: x * cos + swapped halves * sin (the sign is in the table)
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <cmath>
#include <cstdint>

#include "team.h"

namespace {

// Below this many numbers, waking the other threads costs more than they save.
constexpr int64_t kParallelFrom = 8192;

}  // namespace

void atom_lite::rms_norm(const float* x, int64_t x_stride, const float* weight, float* out,
                         int64_t rows, int64_t size, float epsilon) {
#pragma omp for schedule(static) nowait
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * x_stride;
    float* to = out + row * size;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; ++i) squares += from[i] * from[i];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(size) + epsilon);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) to[i] = from[i] * scale * weight[i];
  }
}

void atom_lite::rotate(float* x, int64_t x_stride, const float* cos, const float* sin, int64_t rows,
                       int64_t heads, int64_t head_size) {
  const int64_t half = head_size / 2;
#pragma omp for schedule(static) nowait
  for (int64_t row = 0; row < rows; ++row) {
    const float* c = cos + row * head_size;
    const float* s = sin + row * head_size;
    for (int64_t head = 0; head < heads; ++head) {
      float* low = x + row * x_stride + head * head_size;
      float* high = low + half;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a * c[i] + b * s[i];
        high[i] = b * c[half + i] + a * s[half + i];
      }
    }
  }
}

extern "C" void atom_lite_rms_norm_f32(const float* x, int64_t x_stride, const float* weight,
                                       float* out, int64_t rows, int64_t size, float epsilon) {
#pragma omp parallel if (rows * size >= kParallelFrom)
  atom_lite::rms_norm(x, x_stride, weight, out, rows, size, epsilon);
}

// x [T, heads, head_size], rows `x_stride` apart; cos and sin [T, head_size].
extern "C" void atom_lite_rotate_f32(float* x, int64_t x_stride, const float* cos,
                                     const float* sin, int64_t rows, int64_t heads,
                                     int64_t head_size) {
#pragma omp parallel if (rows * heads * head_size >= kParallelFrom)
  atom_lite::rotate(x, x_stride, cos, sin, rows, heads, head_size);
}
