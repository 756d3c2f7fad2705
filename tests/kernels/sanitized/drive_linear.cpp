// Linear layers in every format and mode, for every height of a tile and ragged widths.

#include <algorithm>

#include "drive.h"
#include "kernels.h"

namespace {

enum Mode : int64_t { kPlain, kAdded, kGated };
enum Format : int64_t { kFloat32, kBfloat16, kFourHalf, kFourFloat, kEightHalf, kEightFloat };
constexpr Format kFormats[] = {kFloat32,   kBfloat16,  kFourHalf,
                               kFourFloat, kEightHalf, kEightFloat};

// As linear.cpp describes the formats: bits of a number, rows of a group (0: no scales), numbers of a
// group and column, and whether these are float16.
struct Layout {
  int64_t bits, group, scales;
  bool half;
};
constexpr Layout kLayouts[] = {{32, 0, 0, false}, {16, 0, 0, false}, {4, 32, 2, true},
                               {4, 32, 2, false}, {8, 32, 1, true},  {8, 16, 1, false}};

// A weight of random bytes in some panels, and what they stand for.
struct Weight {
  Format format;
  int64_t inner, panels, width;    // width: columns of a panel
  std::vector<uint8_t> data, scales;
  std::vector<float> bias;         // of whole panels
  std::vector<double> values;      // [panels, K, width]

  Weight(Format format, int64_t inner, int64_t panels)
      : format(format), inner(inner), panels(panels), width(atom_lite_linear_panel()),
        data(panels * inner * width * layout().bits / 8), bias(numbers(panels * width)),
        values(panels * inner * width) {
    fill();
    for (int64_t at = 0; at < static_cast<int64_t>(values.size()); ++at)
      values[at] = value(at / width / inner, at / width % inner, at % width);
  }

  const Layout& layout() const { return kLayouts[format]; }
  const void* scales_or_null() const { return scales.empty() ? nullptr : scales.data(); }
  double at(int64_t panel, int64_t k, int64_t column) const {
    return values[(panel * inner + k) * width + column];
  }

 private:
  void fill() {
    if (format == kFloat32) {
      for (size_t at = 0; at < data.size(); at += 4) {
        const float one = number();
        std::memcpy(&data[at], &one, 4);
      }
    } else {
      for (uint8_t& byte : data) byte = static_cast<uint8_t>(whole(0, 255));
    }
    if (format == kBfloat16) {  // sign, then exponents around that of 1
      for (size_t at = 1; at < data.size(); at += 2) data[at] = data[at] & 0x80u ? 0xbf : 0x3e;
    }
    if (layout().group == 0) return;
    const int64_t count = panels * (inner / layout().group) * layout().scales * width;
    scales.resize(count * (layout().half ? 2 : 4));
    scales.shrink_to_fit();
    for (int64_t at = 0; at < count; ++at) {
      if (layout().half) {  // any sign and mantissa, exponents below that of 1
        const auto bits = static_cast<uint16_t>(whole(0, 1) << 15 | whole(0, 14 * 1024));
        std::memcpy(&scales[at * 2], &bits, 2);
      } else {
        const float one = number();
        std::memcpy(&scales[at * 4], &one, 4);
      }
    }
  }

  // Numbers of 16 bits lie with a panel's left and right half side by side.
  int64_t paired(int64_t column) const {
    const int64_t lanes = width / 2;
    return column % lanes * 2 + column / lanes;
  }

  double scale(int64_t panel, int64_t k, int64_t column, int64_t which) const {
    const int64_t group = panel * (inner / layout().group) + k / layout().group;
    const int64_t row = (group * layout().scales + which) * width;
    if (layout().half) {
      uint16_t bits = 0;
      std::memcpy(&bits, &scales[(row + paired(column)) * 2], 2);
      return small_float(bits, 5, 10);
    }
    float one = 0.0f;
    std::memcpy(&one, &scales[(row + column) * 4], 4);
    return one;
  }

  double value(int64_t panel, int64_t k, int64_t column) const {
    const int64_t lanes = width / 2, lane = column % lanes, right = column / lanes;
    const int64_t row = (panel * inner + k) * width, bits = layout().bits;
    if (format == kFloat32) {
      float one = 0.0f;
      std::memcpy(&one, &data[(row + column) * 4], 4);
      return one;
    }
    if (format == kBfloat16) {
      uint16_t one = 0;
      std::memcpy(&one, &data[(row + paired(column)) * 2], 2);
      return bfloat16_value(one);
    }
    // A word of four bytes holds the rows of a step: four of four bits, or two of eight.
    const int64_t rows = bits == 4 ? 4 : 2;
    const int64_t word = (panel * inner * width * bits / 8) + (k / rows * lanes + lane) * 4;
    if (bits == 8) {
      const auto quant = static_cast<int8_t>(data[word + k % rows * 2 + right]);
      return quant * scale(panel, k, column, 0);
    }
    const int quant = data[word + k % rows] >> (right ? 4 : 0) & 15;
    return quant * scale(panel, k, column, 0) + scale(panel, k, column, 1);
  }
};

// One column's sum for a row of x, and the sum of magnitudes, of which float32 loses a share.
struct Sum {
  double value, magnitude;
};

Sum sum_of(const Weight& weight, const float* x, int64_t panel, int64_t column, bool has_bias) {
  const double bias = has_bias ? weight.bias[panel * weight.width + column] : 0.0;
  Sum sum{bias, std::fabs(bias)};
  for (int64_t k = 0; k < weight.inner; ++k) {
    const double product = x[k] * weight.at(panel, k, column);
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

// Column `column` of y; `before` is what an added product finds there.
Sum expected(const Weight& weight, const float* x, int64_t column, Mode mode, bool has_bias,
             double before) {
  const int64_t lanes = weight.width / 2;
  if (mode == kGated) {
    const int64_t panel = column / lanes, lane = column % lanes;
    const Sum gate = sum_of(weight, x, panel, lane, has_bias);
    const Sum up = sum_of(weight, x, panel, lanes + lane, has_bias);
    const double slope = std::fabs(silu(gate.value)) + 1.1 * gate.magnitude;
    return {silu(gate.value) * up.value, slope * up.magnitude};
  }
  const Sum sum = sum_of(weight, x, column / weight.width, column % weight.width, has_bias);
  return mode == kAdded ? Sum{sum.value + before, sum.magnitude + std::fabs(before)} : sum;
}

void multiply(const Weight& weight, int64_t rows, int64_t outer, Mode mode, bool has_bias) {
  const int64_t x_stride = weight.inner + 3, y_stride = outer + 2;
  const std::vector<float> x = numbers(extent(rows, weight.inner, x_stride));
  std::vector<float> y(extent(rows, outer, y_stride), kUntouched);
  for (size_t at = 0; mode == kAdded && at < y.size(); ++at) y[at] = number();
  const std::vector<float> before = y;
  atom_lite_linear(weight.format, weight.data.data(), weight.scales_or_null(),
                   has_bias ? weight.bias.data() : nullptr, x.data(), x_stride, y.data(), y_stride,
                   rows, weight.inner, outer, mode);
  const std::string name = "linear, format " + std::to_string(weight.format) + ", mode " +
                           std::to_string(mode) + ", rows " + std::to_string(rows);
  for (int64_t at = 0; at < static_cast<int64_t>(y.size()); ++at) {
    const int64_t row = at / y_stride, column = at % y_stride;
    if (column >= outer) {
      expect_same(y[at], before[at], name + ", between rows");
      continue;
    }
    const Sum exact =
        expected(weight, x.data() + row * x_stride, column, mode, has_bias, before[at]);
    expect_near(y[at], exact.value, 1e-5 * exact.magnitude, name);
  }
}

void take_columns(const Weight& weight, int64_t outer, int64_t count) {
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = whole(0, outer - 1);
  std::vector<float> out(count * weight.inner);
  atom_lite_linear_columns(weight.format, weight.data.data(), weight.scales_or_null(), ids.data(),
                           out.data(), count, weight.inner);
  for (int64_t at = 0; at < static_cast<int64_t>(out.size()); ++at) {
    const int64_t id = ids[at / weight.inner], k = at % weight.inner;
    const double exact = weight.at(id / weight.width, k, id % weight.width);
    expect_near(out[at], exact, 1e-6 * std::max(1.0, std::fabs(exact)), "linear_columns");
  }
}

void drive_format(Format format) {
  const int64_t panel = atom_lite_linear_panel(), lanes = panel / 2;
  for (const int64_t num_panels : {2, 5}) {  // few rows are multiplied by two panels at once
    const Weight weight(format, 32 * num_panels, num_panels);
    for (const int64_t rows : {0, 1, 2, 3, 5, 6, 7, 13, 26}) {
      multiply(weight, rows, num_panels * panel, kPlain, rows % 2 == 0);
      multiply(weight, rows, num_panels * panel - 3, kAdded, rows % 2 == 1);
      multiply(weight, rows, num_panels * lanes - 1, kGated, rows % 3 == 0);
    }
    for (const int64_t count : {0, 1, 9}) take_columns(weight, num_panels * panel - 3, count);
  }
}

}  // namespace

void drive_linear() {
  for (const Format format : kFormats) drive_format(format);
  for (const Format format : {kFloat32, kBfloat16}) {  // which have no groups
    for (const int64_t inner : {1, 17}) multiply(Weight(format, inner, 1), 7, 3, kPlain, true);
  }
  // So long rows of x pass by the panels in more than one block.
  multiply(Weight(kFloat32, 5000, 1), 26, 5, kPlain, true);
  multiply(Weight(kEightHalf, 16384, 1), 26, 5, kPlain, true);
}
