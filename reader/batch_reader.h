// Joins the batches of another reader to larger ones.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "framework/export.h"
#include "reader/reader.h"

namespace headrace {

// Joins `batch_size` batches along their first dimension, LoD included. The last batch of a pass is smaller if the
// number does not come out even, or left away. The elements are copied. An error below is raised immediately; elements
// gathered so far are kept and used if reading continues. Batches that differ in dtype, LoD depth or the other
// dimensions are an InvalidArgument or TypeMismatch that names the tensor, and are dropped. Thread-safety: that of
// ReaderBase.
class HEADRACE_API BatchReader : public DecoratedReader {
 public:
  // Throws InvalidArgument if `batch_size` is 0 or `below` yields scalars.
  BatchReader(const std::shared_ptr<ReaderBase>& below, size_t batch_size, bool drop_last);

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Stop() override { gathered_.clear(); }
  bool RewindImpl() override;

  const size_t batch_size_;
  const bool drop_last_;
  std::vector<LoDTensorArray> gathered_;  // guarded by the read turn
};

// The shapes of a BatchReader's batches: those below with another first dimension. Throws InvalidArgument if a tensor
// has none.
std::vector<TensorSpec> BatchedSpecs(std::vector<TensorSpec> specs);

}  // namespace headrace
