// All layers of a step of decodes in one call: the same bits as the calls of single operations.

#include "drive.h"
#include "kernels.h"

namespace {

enum Mode : int64_t { kPlain, kAdded, kGated };
constexpr int64_t kHidden = 37, kHeads = 4, kKVHeads = 2, kHeadSize = 10, kInner = 21;
constexpr int64_t kBlockSize = 5, kBlocks = 30, kNumLayers = 2;
constexpr float kScale = 0.3f, kEpsilon = 1e-5f;
constexpr int64_t kBytes[] = {4, 2, 1, 1};  // of a number, by the cache's format

// As the C++ side and layers.py have them.
struct Matrix {
  int64_t format;
  const void* data;
  const void* scales;
  const float* bias;
  int64_t inner, outer;
};
struct Product {
  Matrix parts[3];
  int64_t num_parts;
};
struct Layer {
  const float* attention_norm;
  const float* mlp_norm;
  Product qkv, output, gate_up, down;
  void* pages;
  float* scales;
  int64_t window;
  float attention_epsilon, mlp_epsilon;
};
struct Step {
  float* x;
  const float* cos;
  const float* sin;
  const int64_t* slots;
  const int64_t* tables;
  const int64_t* contexts;
  int64_t rows, table_stride, hidden_size, num_heads, num_kv_heads, head_size, block_size, kv_format;
  float scale;
};

// A float32 weight in whole panels, with a bias.
struct Weight {
  int64_t inner, outer;
  std::vector<float> data, bias;

  Weight(int64_t inner, int64_t outer, bool gated = false) : inner(inner), outer(outer) {
    const int64_t panel = atom_lite_linear_panel();
    const int64_t panels = divided_up(outer, gated ? panel / 2 : panel);
    data = numbers(panels * inner * panel);
    bias = numbers(panels * panel);
  }
  Matrix matrix() const { return {0, data.data(), nullptr, bias.data(), inner, outer}; }
};

struct Cache {
  std::vector<uint8_t> pages;
  std::vector<float> scales;

  explicit Cache(int64_t format) {
    const int64_t slots = kBlocks * 2 * kKVHeads * kBlockSize;
    pages.resize(slots * kHeadSize * kBytes[format]);  // zeros: what rows find of their past
    if (kBytes[format] == 1) scales.assign(slots, 1.0f);
  }
  float* scales_or_null() { return scales.empty() ? nullptr : scales.data(); }
};

struct Weights {
  std::vector<float> attention_norm = numbers(kHidden), mlp_norm = numbers(kHidden);
  Weight q{kHidden, kHeads * kHeadSize}, k{kHidden, kKVHeads * kHeadSize},
      v{kHidden, kKVHeads * kHeadSize}, output{kHeads * kHeadSize, kHidden},
      gate_up{kHidden, kInner, true}, down{kInner, kHidden};

  Layer layer(Cache& cache, int64_t window) const {
    return {attention_norm.data(),
            mlp_norm.data(),
            {{q.matrix(), k.matrix(), v.matrix()}, 3},
            {{output.matrix()}, 1},
            {{gate_up.matrix()}, 1},
            {{down.matrix()}, 1},
            cache.pages.data(),
            cache.scales_or_null(),
            window,
            kEpsilon,
            kEpsilon};
  }
};

void apply(const Product& product, const std::vector<float>& x, int64_t x_stride,
           std::vector<float>& y, int64_t y_stride, int64_t rows, Mode mode) {
  int64_t column = 0;
  for (int64_t i = 0; i < product.num_parts; ++i) {
    const Matrix& part = product.parts[i];
    atom_lite_linear(part.format, part.data, part.scales, part.bias, x.data(), x_stride,
                     y.data() + column, y_stride, rows, part.inner, part.outer, mode);
    column += part.outer;
  }
}

// What the one call does, operation by operation, on `x`.
void run_singly(const Layer& layer, const Step& step, std::vector<float>& x) {
  constexpr int64_t kWidth = (kHeads + 2 * kKVHeads) * kHeadSize, kAttended = kHeads * kHeadSize;
  const int64_t rows = step.rows;
  std::vector<float> normed(rows * kHidden), qkv(rows * kWidth), attended(rows * kAttended);
  std::vector<float> inner(rows * kInner);
  atom_lite_rms_norm_f32(x.data(), kHidden, layer.attention_norm, normed.data(), rows, kHidden,
                         layer.attention_epsilon);
  apply(layer.qkv, normed, kHidden, qkv, kWidth, rows, kPlain);
  atom_lite_rotate_f32(qkv.data(), kWidth, step.cos, step.sin, rows, kHeads + kKVHeads, kHeadSize);
  const float* keys = qkv.data() + kAttended;
  atom_lite_store_kv(keys, keys + kKVHeads * kHeadSize, kWidth, layer.pages, layer.scales,
                     step.kv_format, step.slots, rows, kKVHeads, kBlockSize, kHeadSize);
  atom_lite_decode_attention(qkv.data(), kWidth, layer.pages, layer.scales, step.kv_format,
                             step.tables, step.table_stride, step.contexts, attended.data(), rows,
                             kHeads, kKVHeads, kBlockSize, kHeadSize, kScale, layer.window);
  apply(layer.output, attended, kAttended, x, kHidden, rows, kAdded);
  atom_lite_rms_norm_f32(x.data(), kHidden, layer.mlp_norm, normed.data(), rows, kHidden,
                         layer.mlp_epsilon);
  apply(layer.gate_up, normed, kHidden, inner, kInner, rows, kGated);
  apply(layer.down, inner, kInner, x, kHidden, rows, kAdded);
}

// Rows of growing contexts, the last blocks of which are partly filled.
void drive(int64_t rows, int64_t format) {
  const std::vector<Weights> weights(kNumLayers);
  constexpr int64_t kWidth = 3;
  std::vector<int64_t> tables(rows * kWidth, -1), contexts(rows), slots(rows);
  for (int64_t row = 0; row < rows; ++row) {
    contexts[row] = 1 + row * 2 % (kWidth * kBlockSize);
    for (int64_t i = 0; i < divided_up(contexts[row], kBlockSize); ++i)
      tables[row * kWidth + i] = (row * kWidth + i) * 7 % kBlocks;  // 7 and 30: each block once
    const int64_t last = contexts[row] - 1;
    slots[row] = tables[row * kWidth + last / kBlockSize] * kBlockSize + last % kBlockSize;
  }
  const std::vector<float> cos = numbers(rows * kHeadSize), sin = numbers(rows * kHeadSize);
  std::vector<float> x = numbers(rows * kHidden), singly = x;
  const Step step{x.data(), cos.data(),       sin.data(), slots.data(), tables.data(),
                  contexts.data(), rows,      kWidth,     kHidden,      kHeads,
                  kKVHeads,        kHeadSize, kBlockSize, format,       kScale};
  std::vector<Cache> together(kNumLayers, Cache(format)), apart = together;
  std::vector<Layer> layers;
  for (int64_t i = 0; i < kNumLayers; ++i) {
    layers.push_back(weights[i].layer(together[i], i * 4));
    run_singly(weights[i].layer(apart[i], i * 4), step, singly);
  }
  atom_lite_layers(layers.data(), kNumLayers, &step);
  for (size_t at = 0; at < x.size(); ++at) expect_same(x[at], singly[at], "layers");
  for (int64_t i = 0; i < kNumLayers; ++i) {
    for (size_t at = 0; at < apart[i].pages.size(); ++at)
      expect_same(together[i].pages[at], apart[i].pages[at], "layers, pages");
  }
}

}  // namespace

void drive_layers() {
  for (const int64_t rows : {0, 1, 2, 5, 10}) {
    for (const int64_t format : {0, 1, 2, 3}) drive(rows, format);
  }
}
