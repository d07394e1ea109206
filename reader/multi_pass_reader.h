// Yields the data of another reader several times over, as one pass.
#pragma once

#include <cstdint>
#include <memory>

#include "framework/export.h"
#include "reader/reader.h"

namespace headrace {

// Thread-safety: that of ReaderBase.
class HEADRACE_API MultiPassReader : public DecoratedReader {
 public:
  // Throws InvalidArgument if `pass_num` is 0, FailedPrecondition if `below` cannot begin again by itself: data that
  // are pushed into a queue, for one, can only be pushed again by whoever pushes them.
  MultiPassReader(const std::shared_ptr<ReaderBase>& below, uint64_t pass_num);

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Restart() override;
  bool RewindImpl() override;

  const uint64_t pass_num_;
  uint64_t passes_ended_ = 0;  // guarded by the read turn
};

}  // namespace headrace
