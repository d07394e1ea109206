// Python's handle to a Scope, to which the executor's prepared programs are attached.
#pragma once

#include <memory>
#include <vector>

#include "framework/executor.h"
#include "framework/scope.h"

namespace headrace::python {

// A scope, shared by the Python objects that refer to it or to something inside it.
//
// A kid lives as long as something refers to it, and keeps its parent alive. So no Python object can refer to a scope
// that is gone, and an unused kid needs no drop_kids. Thread-safety: guarded by the GIL, except for scope(),
// whose methods have their own lock.
class ScopeHandle : public std::enable_shared_from_this<ScopeHandle> {
 public:
  ScopeHandle();
  explicit ScopeHandle(std::shared_ptr<ScopeHandle> parent);
  // Resets the prepared programs that are left, so that nothing of theirs points into the scope, then destroys it; both
  // without the GIL: its readers join threads that may want the GIL.
  ~ScopeHandle();
  ScopeHandle(const ScopeHandle&) = delete;
  ScopeHandle& operator=(const ScopeHandle&) = delete;

  Scope& scope() { return *scope_; }
  const std::shared_ptr<ScopeHandle>& parent() const { return parent_; }

  // `program` points into this scope until it is reset or destroyed.
  void Attach(const std::shared_ptr<PreparedProgram>& program);
  void Detach(const std::shared_ptr<PreparedProgram>& program);

 private:
  std::shared_ptr<ScopeHandle> parent_;
  std::unique_ptr<Scope> scope_;
  std::vector<std::weak_ptr<PreparedProgram>> prepared_;
};

// A variable of a scope; keeps the scope alive.
struct VariableRef {
  std::shared_ptr<ScopeHandle> scope;
  Variable* variable;
};

}  // namespace headrace::python
