// Drives all kernels; with the argument `overrun`, one with a buffer that is too short by a number.

#include "drive.h"

extern "C" void atom_lite_rms_norm_f32(const float* x, int64_t x_stride, const float* weight,
                                       float* out, int64_t rows, int64_t size, float epsilon);

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "overrun") == 0) {
    const std::vector<float> x = numbers(24), weight = numbers(12);
    std::vector<float> out(23);
    atom_lite_rms_norm_f32(x.data(), 12, weight.data(), out.data(), 2, 12, 1e-5f);
    return 0;
  }
  drive_elementwise();
  drive_linear();
  drive_attention();
  drive_layers();
  std::printf("%lld comparisons\n", static_cast<long long>(comparisons()));
  return 0;
}
