// What the CPU kernels export, as this program calls it.

#pragma once

#include <cstdint>

extern "C" {
int64_t atom_lite_linear_panel();
void atom_lite_linear(int64_t format, const void* data, const void* scales, const float* bias,
                      const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                      int64_t inner, int64_t outer, int64_t mode);
void atom_lite_linear_columns(int64_t format, const void* data, const void* scales,
                              const int64_t* ids, float* out, int64_t count, int64_t inner);
void atom_lite_rms_norm_f32(const float* x, int64_t x_stride, const float* weight, float* out,
                            int64_t rows, int64_t size, float epsilon);
void atom_lite_rotate_f32(float* x, int64_t x_stride, const float* cos, const float* sin,
                          int64_t rows, int64_t heads, int64_t head_size);
void atom_lite_store_kv(const float* keys, const float* values, int64_t stride, void* pages,
                        float* scales, int64_t format, const int64_t* slots, int64_t rows,
                        int64_t num_kv_heads, int64_t block_size, int64_t head_size);
void atom_lite_decode_attention(const float* queries, int64_t query_stride, const void* pages,
                                const float* scales, int64_t format, const int64_t* tables,
                                int64_t table_stride, const int64_t* contexts, float* out,
                                int64_t rows, int64_t num_heads, int64_t num_kv_heads,
                                int64_t block_size, int64_t head_size, float scale, int64_t window);
int64_t atom_lite_prefill_longest_head();
void atom_lite_prefill_attention(const float* queries, int64_t query_stride, const void* pages,
                                 const float* scales, int64_t format, const int64_t* table,
                                 float* out, int64_t prefix, int64_t length, int64_t num_heads,
                                 int64_t num_kv_heads, int64_t block_size, int64_t head_size,
                                 float scale, int64_t window);
void atom_lite_layers(const void* layers, int64_t num_layers, const void* step);
}
