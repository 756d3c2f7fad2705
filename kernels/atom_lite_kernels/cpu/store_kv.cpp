// Keys and values of new tokens into their slots of the paged cache, in the cache's format.
//
// Infinities and NaN are stored as 0: kernels hide slots by a weight of 0, and 0 * NaN is NaN. So what
// one sequence overflows into stays its own.
//
// keys, values  [T, Hk, D]  read, rows `stride` apart
// slots         [T]         block * S + offset
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include "kv_pages.h"
#include "team.h"

namespace {

// Below this many numbers, waking the other threads costs more than they save.
constexpr int64_t kParallelFrom = 8192;
constexpr float kLeastScale = 0x1p-126f;  // its inverse is finite

inline uint32_t bits_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

inline float finite(float number) {
  return (bits_of(number) & 0x7f800000u) == 0x7f800000u ? 0.0f : number;
}

inline float finite_magnitude(float number) { return std::fabs(finite(number)); }

// Halves round to even; the largest numbers become the largest that bfloat16 has, not infinity.
inline uint16_t to_bfloat16(float number) {
  const uint32_t bits = bits_of(number), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool overflows = (rounded & 0x7f800000u) == 0x7f800000u;
  return static_cast<uint16_t>((overflows ? (bits & 0x80000000u) | 0x7f7f0000u : rounded) >> 16);
}

// Nearest, halves to even.
inline int8_t to_int8(float number) {
  return static_cast<int8_t>(std::lrintf(std::min(127.0f, std::max(-127.0f, number))));
}

inline uint8_t to_fp8(float number) {
  const float magnitude = std::min(Fp8::kMost, std::fabs(number));
  const uint32_t bits = bits_of(magnitude);
  const uint32_t normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t small = static_cast<uint32_t>(std::lrintf(magnitude * 512.0f));
  const uint32_t code = magnitude < Fp8::kLeastNormal ? small : normal;
  return static_cast<uint8_t>(code | (bits_of(number) >> 31 << 7));
}

// One head of one token. Scaled formats return their scale.
inline float put(Float32, const float* from, float* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = finite(from[i]);
  return 1.0f;
}

inline float put(Bfloat16, const float* from, uint16_t* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = to_bfloat16(finite(from[i]));
  return 1.0f;
}

template <class Format>
inline float scale_of(const float* from, int64_t size) {
  float most = 0.0f;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < size; ++i) most = std::max(most, finite_magnitude(from[i]));
  return std::max(most / Format::kMost, kLeastScale);
}

inline float put(Int8, const float* from, int8_t* to, int64_t size) {
  const float scale = scale_of<Int8>(from, size), inverse = 1.0f / scale;
  for (int64_t i = 0; i < size; ++i) to[i] = to_int8(finite(from[i]) * inverse);
  return scale;
}

inline float put(Fp8, const float* from, uint8_t* to, int64_t size) {
  const float scale = scale_of<Fp8>(from, size), inverse = 1.0f / scale;
  for (int64_t i = 0; i < size; ++i) to[i] = to_fp8(finite(from[i]) * inverse);
  return scale;
}

}  // namespace

void atom_lite::store_kv(const float* keys, const float* values, int64_t stride,
                         const KVCache& cache, const int64_t* slots, int64_t rows) {
  const Pages pages{cache.pages, cache.scales, cache.num_kv_heads, cache.block_size,
                    cache.head_size};
  with_format(cache.format, [&](auto kind) {
    using Format = decltype(kind);
    auto* data = static_cast<typename Format::Stored*>(cache.pages);
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t block = slots[row] / cache.block_size, offset = slots[row] % cache.block_size;
      for (int64_t head = 0; head < cache.num_kv_heads; ++head) {
        for (int64_t which = 0; which < 2; ++which) {
          const float* from = (which ? values : keys) + row * stride + head * cache.head_size;
          const int64_t slot = pages.first_slot(block, which, head) + offset;
          const float scale = put(kind, from, data + slot * cache.head_size, cache.head_size);
          if (Format::kScaled) cache.scales[slot] = scale;
        }
      }
    }
  });
}

extern "C" void atom_lite_store_kv(const float* keys, const float* values, int64_t stride,
                                   void* pages, float* scales, int64_t format,
                                   const int64_t* slots, int64_t rows, int64_t num_kv_heads,
                                   int64_t block_size, int64_t head_size) {
  const atom_lite::KVCache cache{pages, scales, format, num_kv_heads, block_size, head_size};
#pragma omp parallel if (rows * num_kv_heads * head_size >= kParallelFrom)
  atom_lite::store_kv(keys, values, stride, cache, slots, rows);
}
