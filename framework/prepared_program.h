// PreparedProgram: a program that an Executor has prepared and can run (framework/executor.h).
//
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/place.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/thread_pool.h"

namespace headrace {

// A block made runnable: operators created, names resolved at the first run on a scope and again only when the scope
// has changed. Keeps its temporaries from run to run, in a pool of its own and, as far as they are not needed at the
// same time, in the same memory; a run with shapes and dtypes as before, or smaller ones, allocates nothing from the
// heap. The memory is held until Reset, the next change of scope, or the end. May outlive the scopes it ran on.
class HEADRACE_API PreparedProgram {
 public:
  ~PreparedProgram();
  PreparedProgram(const PreparedProgram&) = delete;
  PreparedProgram& operator=(const PreparedProgram&) = delete;

  // The names that runs fetch from now on, in this order, instead of the previous ones. A variable that has been
  // fetched once has its own memory in all runs; so a new name makes the next run plan the temporaries again.
  // Throws as Executor::Prepare does for a fetch, leaving all as it was; FailedPrecondition if a thread runs it.
  void SetFetches(const std::vector<std::string>& fetches);

  // Lets go of the temporaries and of the scope.
  void Reset();

  // Bytes of memory that it holds for temporaries, whether in use or not.
  size_t memory() const;

 private:
  friend class Executor;
  PreparedProgram(const ProgramDesc& program, const std::vector<std::string>& fetches, size_t block);
  void Run(Scope* scope, const std::map<std::string, LoDTensor>& feeds, std::vector<LoDTensor>* fetched,
           const Place& place, ThreadPool* threads);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
