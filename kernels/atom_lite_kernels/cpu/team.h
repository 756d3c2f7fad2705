// The kernels as parts of a larger call: layers.cpp runs all of a step's layers with them.
//
// Each of these functions is called by all threads of an OpenMP team, with the same arguments, and
// returns in each when that thread's share is done: who reads the result waits at a barrier first.
// Waking a team costs more than a small operation takes, so a step wakes it once.
//
// rms_norm, rotate and store_kv share out rows alike: each can follow the other without a barrier.
//
// Legend: T rows, E hidden size, Hq / Hk query / KV heads, D head size, K inner size of a matrix.

#pragma once

#include <cstdint>
#include <vector>

namespace atom_lite __attribute__((visibility("hidden"))) {

enum Mode : int64_t { kPlain, kAdded, kGated };  // see linear.cpp

// A weight in panels. Laid out as `Matrix` in layers.py.
struct Matrix {
  int64_t format;
  const void* data;
  const void* scales;  // null where the format has none
  const float* bias;   // null, or padded to whole panels, in the panels' order
  int64_t inner;       // K
  int64_t outer;       // columns of the result
};

void multiply(const Matrix& matrix, const float* x, int64_t x_stride, float* y, int64_t y_stride,
              int64_t rows, Mode mode);

// out [rows, size], contiguous.
void rms_norm(const float* x, int64_t x_stride, const float* weight, float* out, int64_t rows,
              int64_t size, float epsilon);

// x [rows, heads, head_size], rows `x_stride` apart; cos and sin [rows, head_size].
void rotate(float* x, int64_t x_stride, const float* cos, const float* sin, int64_t rows,
            int64_t heads, int64_t head_size);

// One layer's paged cache, see kv_pages.h.
struct KVCache {
  void* pages;
  float* scales;  // null where the format has none
  int64_t format, num_kv_heads, block_size, head_size;
};

// keys, values [rows, Hk, D], rows `stride` apart; slots [rows].
void store_kv(const float* keys, const float* values, int64_t stride, const KVCache& cache,
              const int64_t* slots, int64_t rows);

// Rows of one new token each. queries [rows, Hq, D], rows `query_stride` apart; out contiguous.
struct Decodes {
  const float* queries;
  const int64_t* tables;    // [rows, table_stride] block ids
  const int64_t* contexts;  // [rows] tokens of each, the new one included
  float* out;
  int64_t query_stride, table_stride, rows, num_heads;
  int64_t window;  // tokens that a query sees, itself included; 0 for all
  float scale;
};

// What a part of a context found for one query head: values is not yet divided by the sum of weights.
struct DecodeFound {
  float most, sum;
  float* values;
};

// How the rows are cut into parts, and room for what these find. Shared by the team and made before
// it is; serves one call after the other for rows of the same contexts and window.
struct DecodeParts {
  std::vector<int64_t> first, row_of;  // first part of each row among all; row of each part
  std::vector<float> values;
  std::vector<DecodeFound> found;  // [parts, Hq]

  DecodeParts(const Decodes& decodes, int64_t head_size);
};

// Holds one barrier.
void attend_decodes(const Decodes& decodes, const KVCache& cache, DecodeParts& parts);

}  // namespace atom_lite
