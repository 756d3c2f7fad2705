// What the parts of this program share: random buffers of exact size, and the count of comparisons.
//
// The program calls every function that the CPU kernels export, with buffers that end where the
// function may no longer read or write, and compares what comes out with plain loops in double. It is
// compiled together with the kernels under the address and undefined-behaviour sanitizers
// (`test_cpu_sanitized.py`): an access beside a buffer ends it, and so does a wrong number.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

constexpr float kUntouched = 12345.0f;  // stands where nothing may be written

// The same random bits in every run (xorshift; the library's generators take a second to compile).
inline uint64_t random_bits() {
  static uint64_t state = 0x9e3779b97f4a7c15u;
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

inline int64_t whole(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random_bits() >> 1) % (most + 1 - least);
}

inline float number() { return static_cast<float>(whole(-(1 << 20), 1 << 20)) / (1 << 20); }

inline std::vector<float> numbers(int64_t count) {
  std::vector<float> made(count);
  for (float& one : made) one = number();
  return made;
}

// `rows` of `size` numbers that begin `stride` apart; ends with the last row's last number.
inline int64_t extent(int64_t rows, int64_t size, int64_t stride) {
  return rows == 0 ? 0 : (rows - 1) * stride + size;
}

inline int64_t divided_up(int64_t size, int64_t by) { return (size + by - 1) / by; }

inline int64_t& comparisons() {
  static int64_t count = 0;
  return count;
}

// Ends the program unless `got` is within `tolerance` of `exact`; `what` is printed then.
inline void expect_near(double got, double exact, double tolerance, const std::string& what) {
  ++comparisons();
  if (std::fabs(got - exact) <= tolerance) return;  // false for NaN
  std::fprintf(stderr, "%s: %.9g instead of %.9g\n", what.c_str(), got, exact);
  std::exit(1);
}

inline void expect_same(double got, double exact, const std::string& what) {
  expect_near(got, exact, 0.0, what);
}

inline double bfloat16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value = 0.0f;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// A number of `exponent_bits` and `mantissa_bits`, without infinities and NaN.
inline double small_float(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return bits >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

void drive_linear();
void drive_attention();
void drive_elementwise();
void drive_layers();
