// The paged KV cache of one layer, and how its numbers become float32.
//
//   pages   [N, 2, Hk, S, D]  keys at [:, 0], values at [:, 1]
//   scales  [N, 2, Hk, S]     float32, of int8 and fp8: number = stored * scale
//
// A scale belongs to one token and head. So it is known when the token is stored, whatever was
// stored before: one for a whole block would depend on how a prompt was cut.

#pragma once

#include <cmath>

#include "vectors.h"

namespace {

enum KVFormat : int64_t { kKVFloat32, kKVBfloat16, kKVInt8, kKVFp8 };

inline float float_of(uint32_t bits) {
  float number = 0.0f;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

struct Float32 {
  using Stored = float;
  static constexpr bool kScaled = false;
  static float widen(Stored number) { return number; }
  static Vector widen(const Stored* from) { return load(from); }
};

struct Bfloat16 {
  using Stored = uint16_t;
  static constexpr bool kScaled = false;
  static float widen(Stored number) {
    return float_of(static_cast<uint32_t>(number) << 16);
  }
  static Vector widen(const Stored* from) {
    return (Vector)(__builtin_convertvector(load_as<Halves>(from), Words) << 16);
  }
};

struct Int8 {
  using Stored = int8_t;
  static constexpr bool kScaled = true;
  static constexpr float kMost = 127.0f;
  static float widen(Stored number) { return static_cast<float>(number); }
  static Vector widen(const Stored* from) {
    const Integers whole = __builtin_convertvector(load_as<Bytes>(from), Integers);
    return __builtin_convertvector(whole, Vector);
  }
};

// e4m3 without infinities: sign, 4 bits of exponent (bias 7), 3 of mantissa.
struct Fp8 {
  using Stored = uint8_t;
  static constexpr bool kScaled = true;
  static constexpr float kMost = 448.0f;
  static constexpr uint32_t kRebias = 120u << 23;  // from a bias of 7 to one of 127
  static constexpr float kLeastNormal = 0x1p-6f;
  static float widen(Stored code) {
    float value = float_of(((code & 0x7fu) << 20) + kRebias);
    if ((code & 0x78u) == 0) value = value * 2.0f - kLeastNormal;  // no hidden bit
    return code & 0x80u ? -value : value;
  }
  static Vector widen(const Stored* from) {
    const Words code = __builtin_convertvector(load_as<Codes>(from), Words);
    const Vector value = (Vector)(((code & 0x7fu) << 20) + kRebias);
    const Vector exact = (code & 0x78u) == 0 ? value * 2.0f - kLeastNormal : value;
    return (Vector)((Words)exact | ((code & 0x80u) << 24));
  }
};

// One layer's cache. D: numbers of a head.
struct Pages {
  const void* data;
  const float* scales;  // null where the format has none
  int64_t num_kv_heads, block_size, head_size;

  int64_t head_page() const { return block_size * head_size; }
  // Index of the first slot of a block's head; `values` 0 for keys, 1 for values.
  int64_t first_slot(int64_t block, int64_t values, int64_t head) const {
    return ((block * 2 + values) * num_kv_heads + head) * block_size;
  }
};

// Calls run.operator()<Format>() for the format of this number.
template <class Run>
inline void with_format(int64_t format, Run run) {
  switch (format) {
    case kKVFloat32: return run(Float32());
    case kKVBfloat16: return run(Bfloat16());
    case kKVInt8: return run(Int8());
    case kKVFp8: return run(Fp8());
  }
}

}  // namespace
