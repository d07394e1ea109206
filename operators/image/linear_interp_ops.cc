// bilinear_interp and trilinear_interp: images and volumes of another size, by linear interpolation in all directions.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "operators/image/interpolation.h"

namespace headrace::ops {
namespace {

template <size_t kDimensions>
struct LinearPixel {
  static constexpr bool kLinear = true;
  static constexpr size_t kSpatial = kDimensions;
  template <typename Real>
  static PoolVector<PixelSource> Sources(const PixelAlignment& alignment, int64_t in, int64_t out) {
    const auto ratio = alignment.Ratio<Real>(in, out);
    PoolVector<PixelSource> sources;
    for (int64_t i = 0; i < out; ++i) {
      const double at = std::max(alignment.centers ? ratio * (static_cast<double>(i) + 0.5) - 0.5
                                                   : static_cast<double>(ratio * static_cast<Real>(i)),
                                 0.0);
      const int64_t low = std::min(static_cast<int64_t>(at), in - 1);
      const Real past = static_cast<Real>(at) - static_cast<Real>(low);
      sources.push_back({low, std::min(low + 1, in - 1), Real(1) - past, past});
    }
    return sources;
  }
};

HEADRACE_REGISTER_OPS(linear_interp) {
  RegisterInterpolation<LinearPixel<2>>("bilinear_interp",
                                        "Images of another size; a pixel is the weighted mean of its four nearest.");
  RegisterInterpolation<LinearPixel<3>>("trilinear_interp",
                                        "Volumes of another size; a voxel is the weighted mean of its eight nearest.");
}

}  // namespace
}  // namespace headrace::ops
