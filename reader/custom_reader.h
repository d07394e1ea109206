// A reader that runs a block of a program on each batch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/block_runner.h"
#include "framework/export.h"
#include "framework/memory_pool.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/thread_annotations.h"
#include "reader/reader.h"

namespace headrace {

// Yields what the block makes of the batches below: it finds the tensors of a batch in variables of its own, the
// sources, and leaves those of its result in others, the sinks. Of the blocks around it, it reads persistable tensors
// only; it sees the values that it was last given, and its own copy of the program, so that it may run in any thread
// while the program goes on. A batch that does not fit what the reader below declares is refused as the operator `read`
// refuses it. Thread-safety: that of ReaderBase; SetOuter may be called from any thread.
class HEADRACE_API CustomReader : public DecoratedReader {
 public:
  // What the block reads and leaves, checked.
  struct Wiring {
    std::vector<std::string> sources;  // one for each tensor that the reader below yields
    std::vector<std::string> sinks;    // one for each tensor that this one yields
    std::vector<std::string> outer;    // variables of the blocks around it
  };
  // Throws InvalidArgument, NotFound or TypeMismatch if `op`, an operator create_custom_reader of `block`, makes no
  // sense.
  static Wiring Check(const BlockDesc& block, const OpDesc& op);

  // `op` is an operator of `block`, whose program the executor has checked and which is copied.
  CustomReader(const std::shared_ptr<ReaderBase>& below, const BlockDesc& block, const OpDesc& op, Wiring wiring);

  // The values of the outer variables from the next batch on; they share their memory.
  void SetOuter(std::map<std::string, LoDTensor> values) HR_EXCLUDES(values_mutex_);

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void TakeOuter() HR_EXCLUDES(values_mutex_);

  const ProgramDesc program_;
  const Wiring wiring_;
  Mutex values_mutex_;
  std::map<std::string, LoDTensor> values_ HR_GUARDED_BY(values_mutex_);  // that have been set since
  // With the read turn.
  MemoryPool pool_;
  Scope outer_;
  Scope inner_;
  std::vector<Variable*> sources_;
  std::vector<Variable*> sinks_;
  BlockRunner runner_;
};

}  // namespace headrace
