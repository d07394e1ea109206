// Executor: checks and prepares a program once, then runs it on a scope as often as you like.
//
//   Executor executor;
//   executor.Run(startup, &scope);
//   auto prepared = executor.Prepare(main, /*fetches=*/{"loss"});
//   for (;;) { executor.Run(*prepared, &scope, {}, &fetched); }
//
// Thread-safety: any thread may use an Executor; a PreparedProgram may be run by one thread at a time. Several threads
// may run programs on one scope as long as they do not write the same variables.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/operator.h"
#include "framework/prepared_program.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/thread_pool.h"

namespace headrace {

class HEADRACE_API Executor {
 public:
  // Kernels share their work among `cpu_num` threads, of which the caller of Run is one; 0: as many as the environment
  // variable CPU_NUM says, 1 if there is none. The results have the same bits for any number. The threads belong to the
  // Executor and its copies, so keep one that runs programs again and again. Throws InvalidArgument if the number is
  // not in [1, ThreadPool::kMaxThreads].
  explicit Executor(Place place = {}, int cpu_num = 0);

  int cpu_num() const { return threads_->threads(); }

  // Makes a block of `program` runnable. The program is copied; later changes to it do not show. Throws NotFound for an
  // unknown operator, for a variable that the program does not declare, and for a fetch that the block and its
  // ancestors do not declare; TypeMismatch for a fetch that is not a LoDTensor; OutOfRange if there is no such block;
  // otherwise as OpRegistry::Check.
  std::unique_ptr<PreparedProgram> Prepare(const ProgramDesc& program, const std::vector<std::string>& fetches = {},
                                           size_t block = 0) const;

  // Runs once. Persistable variables, readers and raw variables (queues) are found or created in `scope`, all others in
  // a scope of the prepared program. `feeds` are put into the variables they name before the first operator, sharing
  // their memory, and taken out after the last (feeds of persistable variables are copied and stay); a feed that
  // contradicts the declared shape, dtype or LoD depth is an InvalidArgument or TypeMismatch naming the variable, one
  // that is not declared a NotFound. `fetched`, if given, is emptied first and receives the fetches in order; the
  // tensors belong to the caller: the next run does not write into them, and their memory has no other owner, so that
  // they may be changed in place (values that persist, were fed, come from a block that may not run, lie in foreign
  // memory, or share memory with other tensors are copied). Operators that take data from readers run before all others
  // that they do not depend on, so that EndOfData leaves every persistable variable untouched. Throws the exceptions of
  // operators, with operator and variable as context; FailedPrecondition if another thread runs `prepared`; between
  // operators, the exceptions of the thread's ScopedWaitHook. It can be run again after any error.
  void Run(PreparedProgram& prepared, Scope* scope, const std::map<std::string, LoDTensor>& feeds = {},
           std::vector<LoDTensor>* fetched = nullptr) const;

  // Prepares and runs once.
  void Run(const ProgramDesc& program, Scope* scope) const;

 private:
  Place place_;
  std::shared_ptr<ThreadPool> threads_;
};

}  // namespace headrace
