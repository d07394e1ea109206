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

  // Registers all operators noted down and returns their types, sorted. Throws as OpRegistry::Register does; then none
  // is registered.
  std::vector<std::string> Commit();

 private:
  friend class OpRegistry;
  void Detach();

  OpRegistrationLog* previous_;
  std::vector<OpInfo> infos_;
};

}  // namespace headrace
