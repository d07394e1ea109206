// A reader that several threads read from.
#pragma once

#include <memory>

#include "framework/export.h"
#include "reader/reader.h"

namespace headrace {

// Yields the batches of another reader, each to whichever thread asks first. As any reader may be read by several
// threads, it changes nothing; it is here because programs name it. Thread-safety: that of ReaderBase.
class HEADRACE_API ThreadedReader final : public DecoratedReader {
 public:
  explicit ThreadedReader(const std::shared_ptr<ReaderBase>& below) : DecoratedReader(below) {}

 private:
  void ReadNextImpl(LoDTensorArray* out) override { underlying()->ReadIfRunning(out); }
};

}  // namespace headrace
