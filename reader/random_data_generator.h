// A source of random numbers, for trying out programs.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/ddim.h"
#include "framework/export.h"
#include "reader/reader.h"

namespace headrace {

// Yields, without end, batches of float32 tensors uniformly distributed in [low, high). Every number is a function of
// the seed and of its position in the sequence since the reader was made, whatever resets come in between.
// Thread-safety: that of ReaderBase.
class HEADRACE_API RandomDataGenerator : public ReaderBase {
 public:
  // Throws InvalidArgument if `low` is not less than `high`, one of them or their distance is not finite, a shape is
  // not wholly known, or there is none.
  RandomDataGenerator(const std::vector<DDim>& shapes, float low, float high, uint64_t seed);

  bool CanRewind() const override { return true; }

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  bool RewindImpl() override { return true; }

  const float low_;
  const float high_;
  const uint64_t seed_;
  uint64_t position_ = 0;  // guarded by the read turn
};

}  // namespace headrace
