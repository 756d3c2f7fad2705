// The small operations between a decoder's matrices, in float32 on a CPU: each one pass over memory.
//
//   rms_norm   out[t] = x[t] / sqrt(mean(x[t]^2) + epsilon) * weight
//   rotate     heads x[t] turned in place: x * cos + swapped halves * sin (the sign is in the table)
//   store_kv   keys and values of new tokens into their slots of the paged cache
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

// Below this many numbers, waking the other threads costs more than they save.
constexpr int64_t kParallelFrom = 8192;

// Copies, with 0 in place of infinities and NaN. By bits: fast math lets the compiler assume that
// neither exists, and would drop a comparison.
void copy_finite(const float* from, float* to, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t kept = (bits & 0x7f800000u) == 0x7f800000u ? 0u : bits;
    std::memcpy(to + i, &kept, sizeof kept);
  }
}

}  // namespace

extern "C" void atom_lite_rms_norm_f32(const float* x, int64_t x_stride, const float* weight,
                                       float* out, int64_t rows, int64_t size, float epsilon) {
#pragma omp parallel for schedule(static) if (rows * size >= kParallelFrom)
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

// x [T, heads, head_size], rows `x_stride` apart; cos and sin [T, head_size].
extern "C" void atom_lite_rotate_f32(float* x, int64_t x_stride, const float* cos,
                                     const float* sin, int64_t rows, int64_t heads,
                                     int64_t head_size) {
  const int64_t half = head_size / 2;
#pragma omp parallel for schedule(static) if (rows * heads * head_size >= kParallelFrom)
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

// keys and values [T, Hk, D], rows `stride` apart; pages [N, 2, Hk, S, D]; slots [T], block * S +
// offset.
extern "C" void atom_lite_store_kv_f32(const float* keys, const float* values, int64_t stride,
                                       float* pages, const int64_t* slots, int64_t rows,
                                       int64_t num_kv_heads, int64_t block_size,
                                       int64_t head_size) {
  const int64_t head_page = block_size * head_size;
  const int64_t which_page = num_kv_heads * head_page;
#pragma omp parallel for schedule(static) if (rows * which_page / block_size >= kParallelFrom)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t block = slots[row] / block_size, offset = slots[row] % block_size;
    float* to = pages + block * 2 * which_page + offset * head_size;
    for (int64_t head = 0; head < num_kv_heads; ++head, to += head_page) {
      copy_finite(keys + row * stride + head * head_size, to, head_size);
      copy_finite(values + row * stride + head * head_size, to + which_page, head_size);
    }
  }
}
