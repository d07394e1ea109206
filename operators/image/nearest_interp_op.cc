// nearest_interp: images of another size, each pixel the nearest one.
#include <algorithm>
#include <cstdint>

#include "operators/image/interpolation.h"

namespace headrace::ops {
namespace {

struct NearestPixel {
  static constexpr bool kLinear = false;
  static constexpr size_t kSpatial = 2;
  template <typename>
  static PoolVector<PixelSource> Sources(const PixelAlignment& alignment, int64_t in, int64_t out) {
    const auto ratio = alignment.Ratio<float>(in, out);  // a pixel half-way between two is Fluid's only in float
    PoolVector<PixelSource> sources;
    for (int64_t i = 0; i < out; ++i) {
      const float place = ratio * static_cast<float>(i);
      const auto at = static_cast<int64_t>(static_cast<double>(place) + (alignment.corners ? 0.5 : 0));
      const int64_t low = std::min(at, in - 1);
      sources.push_back({low, low});
    }
    return sources;
  }
};

HEADRACE_REGISTER_OPS(nearest_interp) {
  RegisterInterpolation<NearestPixel>("nearest_interp", "Images of another size; a pixel is the nearest one.");
}

}  // namespace
}  // namespace headrace::ops
