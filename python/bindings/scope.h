// What Python holds when it holds a Scope, and what the executor's prepared programs hang on.
#pragma once

#include <memory>
#include <vector>

#include "framework/executor.h"
#include "framework/scope.h"

namespace headrace::python {

// A scope, shared by the Python objects that refer to it or to something inside it.
//
// A kid lives as long as somebody refers to it and keeps its parent alive; so nothing in Python can refer to a scope
// that is gone, and a kid that nobody wants needs no drop_kids. Thread-safety: guarded by the GIL, except for scope(),
// whose methods have their own lock.
class ScopeHandle : public std::enable_shared_from_this<ScopeHandle> {
 public:
  ScopeHandle();
  explicit ScopeHandle(std::shared_ptr<ScopeHandle> parent);
  // Lets the prepared programs go of the scope, then destroys it without the GIL: readers in it join threads that may
  // want the GIL.
  ~ScopeHandle();
  ScopeHandle(const ScopeHandle&) = delete;
  ScopeHandle& operator=(const ScopeHandle&) = delete;

  Scope& scope() { return *scope_; }
  const std::shared_ptr<ScopeHandle>& parent() const { return parent_; }

  // `program` points into this scope until it is detached.
  void Attach(PreparedProgram* program);
  void Detach(PreparedProgram* program);

 private:
  std::shared_ptr<ScopeHandle> parent_;
  std::unique_ptr<Scope> scope_;
  std::vector<PreparedProgram*> prepared_;
};

// A variable of a scope, which it keeps alive.
struct VariableRef {
  std::shared_ptr<ScopeHandle> scope;
  Variable* variable;
};

}  // namespace headrace::python
