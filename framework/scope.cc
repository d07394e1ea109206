#include "framework/scope.h"

#include <algorithm>

#include "framework/errors.h"

namespace headrace {
namespace {

// Gives out the ids and the revisions of all scopes.
uint64_t NextNumber() {
  static std::atomic<uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Scope::Scope() : Scope(nullptr) {}
Scope::Scope(const Scope* parent) : parent_(parent), id_(NextNumber()), revision_(id_) {}
Scope::~Scope() = default;

Variable* Scope::Var(const std::string& name) {
  const MutexLock lock(mutex_);
  std::unique_ptr<Variable>& variable = vars_[name];
  if (variable == nullptr) {
    variable = std::make_unique<Variable>(name);
    Touch();
  }
  return variable.get();
}

Variable* Scope::FindLocalVar(const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto it = vars_.find(name);
  return it == vars_.end() ? nullptr : it->second.get();
}

Variable* Scope::FindVar(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
    if (Variable* variable = scope->FindLocalVar(name)) {
      return variable;
    }
  }
  return nullptr;
}

Variable& Scope::GetVar(const std::string& name) const {
  Variable* variable = FindVar(name);
  HR_ENFORCE(variable != nullptr, NotFound, "the scope has no variable '", name, "'");
  return *variable;
}

std::vector<Variable*> Scope::GetVars(const std::vector<std::string>& names) const {
  std::vector<Variable*> variables;
  variables.reserve(names.size());
  for (const std::string& name : names) {
    variables.push_back(&GetVar(name));
  }
  return variables;
}

Scope& Scope::NewScope() {
  auto kid = std::make_unique<Scope>(this);
  const MutexLock lock(mutex_);
  return *kids_.emplace_back(std::move(kid));
}

void Scope::DropKids() {
  std::list<std::unique_ptr<Scope>> dropped;  // destroyed without the lock: values may take their time
  const MutexLock lock(mutex_);
  dropped.swap(kids_);
}

void Scope::DeleteScope(Scope* kid) {
  std::unique_ptr<Scope> dropped;
  const MutexLock lock(mutex_);
  const auto it = std::find_if(kids_.begin(), kids_.end(), [kid](const auto& k) { return k.get() == kid; });
  HR_ENFORCE(it != kids_.end(), NotFound, "the scope to delete is not a child of this scope");
  dropped = std::move(*it);
  kids_.erase(it);
}

std::vector<std::string> Scope::LocalVarNames() const {
  std::vector<std::string> names;
  {
    const MutexLock lock(mutex_);
    names.reserve(vars_.size());
    for (const auto& [name, variable] : vars_) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void Scope::EraseVars(const std::vector<std::string>& names) {
  std::vector<std::unique_ptr<Variable>> dropped;
  const MutexLock lock(mutex_);
  for (const std::string& name : names) {
    if (const auto it = vars_.find(name); it != vars_.end()) {
      dropped.push_back(std::move(it->second));
      vars_.erase(it);
      Touch();
    }
  }
}

uint64_t Scope::revision() const {
  uint64_t latest = 0;
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
    latest = std::max(latest, scope->revision_.load(std::memory_order_acquire));
  }
  return latest;
}

void Scope::Touch() { revision_.store(NextNumber(), std::memory_order_release); }

}  // namespace headrace
