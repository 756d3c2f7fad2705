// Vectors of floats for all kernels, as wide as the instruction set that is compiled for.
//
// GCC's and clang's vector extensions: where a machine's registers are narrower, the compiler takes
// several. ATOM_LITE_LANES sets the width by hand, so that the arithmetic of wide vectors can be run
// on a machine that has only narrow ones.
//
// All is in an unnamed namespace: each source has its own copy, compiled as that source is.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

#if defined(ATOM_LITE_LANES)
constexpr int64_t kLanes = ATOM_LITE_LANES;
#elif defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#else
constexpr int64_t kLanes = 8;
#endif

constexpr int64_t kPanel = 2 * kLanes;               // columns whose sums a tile of rows keeps
constexpr int64_t kTileRows = kLanes == 16 ? 12 : 6;  // rows whose sums fit the registers
constexpr float kLog2E = 1.44269504f;

// Not aligned: numbers are read where they lie.
typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes), aligned(1)));
typedef uint8_t Codes __attribute__((vector_size(kLanes), aligned(1)));

// By copying: a template would lose the attributes of a type that it is given, and expect alignment.
template <class T>
inline T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
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

inline float power_of_two(float x) { return power_of_two(Vector{} + x)[0]; }

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

// Picks numbers of a and b by position, b's counted on from a's.
template <int64_t... kPicked>
inline Vector pick(Vector a, Vector b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kPicked...);
#else
  return __builtin_shuffle(a, b, Integers{kPicked...});
#endif
}

// Where bit kStep of a lane is clear, a's number there plus a's kStep on; else the same of b.
template <int64_t kStep, int64_t... kLane>
inline Vector folded(Vector a, Vector b, std::integer_sequence<int64_t, kLane...>) {
  return pick<((kLane & kStep) ? kLanes + (kLane ^ kStep) : kLane)...>(a, b) +
         pick<((kLane & kStep) ? kLanes + kLane : (kLane ^ kStep))...>(a, b);
}

// The sum of each of kLanes vectors, in one; `v` is used up.
template <int64_t kStep = 1>
inline Vector sums_of(Vector* v) {
  if constexpr (kStep == kLanes) {
    return v[0];
  } else {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLanes / kStep / 2; ++i)
      v[i] = folded<kStep>(v[2 * i], v[2 * i + 1], std::make_integer_sequence<int64_t, kLanes>());
    return sums_of<2 * kStep>(v);
  }
}

}  // namespace
