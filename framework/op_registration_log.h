// Gathers what the static initialisers of a library register, so that it is taken over as a whole or not at all. A
// static initialiser must not throw: the dynamic linker cannot be unwound.
//
// Thread-safety: from its construction to Commit or its end, a log receives what its own thread registers; other
// threads are not affected. Logs of one thread nest.
#pragma once

#include <string>
#include <vector>

#include "framework/op_registry.h"

namespace headrace {

class OpRegistrationLog {
 public:
  OpRegistrationLog();
  ~OpRegistrationLog();
  OpRegistrationLog(const OpRegistrationLog&) = delete;
  OpRegistrationLog& operator=(const OpRegistrationLog&) = delete;

  // Whether nothing was registered.
  bool empty() const { return infos_.empty() && kernels_.empty(); }

  // Registers all operators and kernels noted down and returns the types of the operators, sorted. Throws as
  // OpRegistry::Register and RegisterKernel do; then nothing is registered.
  std::vector<std::string> Commit();

 private:
  friend class OpRegistry;
  void Detach();

  OpRegistrationLog* previous_;
  std::vector<OpInfo> infos_;
  struct Kernel {
    std::string type;
    DataType dtype;
    KernelFn kernel;
  };
  std::vector<Kernel> kernels_;
};

}  // namespace headrace
