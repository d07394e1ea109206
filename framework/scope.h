// A hierarchical name space of variables. A look-up that fails continues in the parent.
//
// Thread-safety: all methods may be called from any thread; they guard the names, not the values of the variables.
// Lifetime: a scope owns its variables and its kids; pointers to variables stay valid until EraseVars, DropKids or the
// scope's end.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "framework/export.h"
#include "framework/thread_annotations.h"
#include "framework/variable.h"

namespace headrace {

class HEADRACE_API Scope {
 public:
  Scope();
  // A scope inside `parent`, owned by the caller and not among the parent's kids. Must not be used after the parent's
  // end.
  explicit Scope(const Scope* parent);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // The variable `name` of this very scope, created empty if it does not exist.
  Variable* Var(const std::string& name);

  // The variable `name` of this scope or of the nearest ancestor that has one; nullptr if there is none.
  Variable* FindVar(const std::string& name) const;

  // As FindVar, for this very scope only.
  Variable* FindLocalVar(const std::string& name) const;

  // As FindVar, but throws NotFound naming the variable.
  Variable& GetVar(const std::string& name) const;
  // The same for each name.
  std::vector<Variable*> GetVars(const std::vector<std::string>& names) const;

  // A new child; owned by this scope.
  Scope& NewScope();
  void DropKids();
  // Throws NotFound if `kid` is not a child of this scope.
  void DeleteScope(Scope* kid);
  const Scope* parent() const { return parent_; }

  // Names of this very scope, sorted.
  std::vector<std::string> LocalVarNames() const;
  // Unknown names are ignored.
  void EraseVars(const std::vector<std::string>& names);

  // Unlike the address, never the same for two scopes of a process.
  uint64_t id() const { return id_; }

  // Grows whenever a look-up through this scope may find something else than before, because a variable was created or
  // erased here or in an ancestor. Of two scopes that follow one another at one address, the later has the greater
  // numbers; so a pointer kept together with its scope's address and this number is valid as long as both are the same.
  uint64_t revision() const;

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  void Touch() HR_REQUIRES(mutex_);

  const Scope* const parent_;
  const uint64_t id_;
  std::atomic<uint64_t> revision_;  // drawn from a counter of the process at creation and at each change
  mutable Mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Variable>> vars_ HR_GUARDED_BY(mutex_);
  std::list<std::unique_ptr<Scope>> kids_ HR_GUARDED_BY(mutex_);
};

}  // namespace headrace
