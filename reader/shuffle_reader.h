// Yields the batches of another reader in a pseudo-random order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "framework/export.h"
#include "reader/reader.h"

namespace headrace {

// Reads `buffer_size` batches, yields them in an order that depends on the seed and on how many buffers there were
// before, in all passes, and so on; so every run of a program shuffles alike, and every pass differently. The buffer is
// filled when a batch is first asked for. An error below comes out at once; the batches read so far are kept and
// yielded if reading goes on. Thread-safety: that of ReaderBase.
class HEADRACE_API ShuffleReader : public DecoratedReader {
 public:
  // Throws InvalidArgument if `buffer_size` is 0.
  ShuffleReader(const std::shared_ptr<ReaderBase>& below, size_t buffer_size, uint64_t seed);

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Stop() override { Clear(); }
  bool RewindImpl() override;
  void Clear();

  const size_t buffer_size_;
  const uint64_t seed_;
  uint64_t buffers_ = 0;  // filled so far
  std::vector<LoDTensorArray>
      buffer_;  // the rest, in the order in which it is yielded from the end; guarded by the read turn
  std::vector<LoDTensorArray> filling_;
};

}  // namespace headrace
