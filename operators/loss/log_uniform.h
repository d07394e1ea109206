// The log-uniform distribution over classes, of which those with low numbers are more frequent.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace headrace::ops {

// Over [0, classes).
class LogUniform {
 public:
  explicit LogUniform(int64_t classes) : classes_(classes), log_range_(std::log(static_cast<double>(classes) + 1)) {}

  double Probability(int64_t label) const {
    const auto x = static_cast<double>(label);
    return std::log((x + 2) / (x + 1)) / log_range_;
  }

  // A class, from a number that is uniform in [0, 1).
  int64_t Draw(double u) const {
    return std::clamp<int64_t>(static_cast<int64_t>(std::exp(u * log_range_)) - 1, 0, classes_ - 1);
  }

 private:
  int64_t classes_;
  double log_range_;
};

}  // namespace headrace::ops
