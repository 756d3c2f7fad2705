// All layers of a step in one call, where each row is one new token of its sequence.
//
//   x += output(attention(rotate(qkv(norm(x)))))
//   x += down(silu(gate(norm(x))) * up(norm(x)))
//
// The same functions as the calls of single operations, so the same bits; but the threads are woken
// once, and nothing comes between.
//
// Plain C++ with a C ABI: pointers and sizes only, no torch headers.

#include <map>
#include <memory>

#include "team.h"

namespace {

using namespace atom_lite;

constexpr int64_t kMostParts = 3;  // q, k and v

// Matrices of one K, whose columns stand side by side in the result. As `Product` in layers.py.
struct Product {
  Matrix parts[kMostParts];
  int64_t num_parts;

  int64_t width() const {
    int64_t columns = 0;
    for (int64_t i = 0; i < num_parts; ++i) columns += parts[i].outer;
    return columns;
  }
};

// As `Layer` in layers.py.
struct Layer {
  const float* attention_norm;  // [E]
  const float* mlp_norm;
  Product qkv, output, gate_up, down;
  void* pages;
  float* scales;
  int64_t window;
  float attention_epsilon, mlp_epsilon;
};

// As `Step` in layers.py.
struct Step {
  float* x;           // [T, E], written
  const float* cos;   // [T, D]
  const float* sin;
  const int64_t* slots;     // [T]
  const int64_t* tables;    // [T, table_stride]
  const int64_t* contexts;  // [T], the new token included
  int64_t rows, table_stride, hidden_size, num_heads, num_kv_heads, head_size;
  int64_t block_size, kv_format;
  float scale;
};

// What lies between the operations of a layer, [T, ...] each.
struct Buffers {
  int64_t qkv_width, attended_width, inner_width;
  std::unique_ptr<float[]> memory;
  float *normed, *qkv, *attended, *inner;

  Buffers(const Layer& layer, const Step& step)
      : qkv_width(layer.qkv.width()),
        attended_width(step.num_heads * step.head_size),
        inner_width(layer.gate_up.width()),
        memory(new float[step.rows *
                         (step.hidden_size + qkv_width + attended_width + inner_width)]),
        normed(memory.get()),
        qkv(normed + step.rows * step.hidden_size),
        attended(qkv + step.rows * qkv_width),
        inner(attended + step.rows * attended_width) {}
};

void apply(const Product& product, const float* x, int64_t x_stride, float* y, int64_t y_stride,
           int64_t rows, Mode mode) {
  for (int64_t i = 0; i < product.num_parts; ++i) {
    multiply(product.parts[i], x, x_stride, y, y_stride, rows, mode);
    y += product.parts[i].outer;
  }
}

Decodes decodes_of(const Layer& layer, const Step& step, const Buffers& buffers) {
  return {buffers.qkv,       step.tables, step.contexts,  buffers.attended, buffers.qkv_width,
          step.table_stride, step.rows,   step.num_heads, layer.window,     step.scale};
}

// The parts of the rows' contexts for each window that layers have.
class Plans {
 public:
  Plans(const Layer* layers, int64_t num_layers, const Step& step, const Buffers& buffers) {
    for (int64_t i = 0; i < num_layers; ++i) {
      if (plans_.count(layers[i].window) == 0)
        plans_.emplace(layers[i].window,
                       DecodeParts(decodes_of(layers[i], step, buffers), step.head_size));
    }
  }
  DecodeParts& of(const Layer& layer) { return plans_.at(layer.window); }

 private:
  std::map<int64_t, DecodeParts> plans_;
};

void store_and_attend(const Layer& layer, const Step& step, const Buffers& to, DecodeParts& parts) {
  float* keys = to.qkv + step.num_heads * step.head_size;
  const float* values = keys + step.num_kv_heads * step.head_size;
  const KVCache cache{layer.pages,       layer.scales,    step.kv_format,
                      step.num_kv_heads, step.block_size, step.head_size};
  rotate(to.qkv, to.qkv_width, step.cos, step.sin, step.rows, step.num_heads + step.num_kv_heads,
         step.head_size);
  store_kv(keys, values, to.qkv_width, cache, step.slots, step.rows);
#pragma omp barrier
  attend_decodes(decodes_of(layer, step, to), cache, parts);
}

// Called by all threads of a team.
void run(const Layer& layer, const Step& step, const Buffers& to, DecodeParts& parts) {
  const int64_t rows = step.rows, size = step.hidden_size;
  rms_norm(step.x, size, layer.attention_norm, to.normed, rows, size, layer.attention_epsilon);
#pragma omp barrier
  apply(layer.qkv, to.normed, size, to.qkv, to.qkv_width, rows, kPlain);
#pragma omp barrier
  store_and_attend(layer, step, to, parts);
#pragma omp barrier
  apply(layer.output, to.attended, to.attended_width, step.x, size, rows, kAdded);
#pragma omp barrier
  rms_norm(step.x, size, layer.mlp_norm, to.normed, rows, size, layer.mlp_epsilon);
#pragma omp barrier
  apply(layer.gate_up, to.normed, size, to.inner, to.inner_width, rows, kGated);
#pragma omp barrier
  apply(layer.down, to.inner, to.inner_width, step.x, size, rows, kAdded);
#pragma omp barrier
}

}  // namespace

// `layers` [num_layers] of Layer, all of the same shape; `step` a Step.
extern "C" void atom_lite_layers(const void* layers, int64_t num_layers, const void* step) {
  const auto* first = static_cast<const Layer*>(layers);
  const Step& shared = *static_cast<const Step*>(step);
  const Buffers buffers(*first, shared);
  Plans plans(first, num_layers, shared, buffers);
#pragma omp parallel
  for (int64_t i = 0; i < num_layers; ++i) run(first[i], shared, buffers, plans.of(first[i]));
}
