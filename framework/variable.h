// A box for one value of any type, held by a Scope: LoDTensor, LoDTensorArray, ReaderHolder,
// LoDTensorBlockingQueueHolder, …
//
// Thread-safety: none; the value's own type defines the thread-safety of its operations.
#pragma once

#include <memory>
#include <string>
#include <typeinfo>

#include "framework/errors.h"
#include "framework/export.h"

namespace headrace {

// Readable form of a type's name, for messages.
HEADRACE_API std::string Demangle(const std::type_info& type);

class HEADRACE_API Variable {
 public:
  explicit Variable(std::string name = {});
  ~Variable();
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

  const std::string& name() const { return name_; }
  bool initialized() const { return holder_ != nullptr; }

  template <typename T>
  bool IsType() const {
    return holder_ != nullptr && holder_->type() == typeid(T);
  }

  // The value. Throws FailedPrecondition if there is none, TypeMismatch if it is of another type; both name the
  // variable.
  template <typename T>
  const T& Get() const {
    CheckIs(typeid(T));
    return static_cast<const Holder<T>*>(holder_.get())->value;
  }

  // The value for writing, default-constructed if there is none yet. Throws TypeMismatch if it is of another type.
  template <typename T>
  T* GetMutable() {
    if (holder_ == nullptr) {
      holder_ = std::make_unique<Holder<T>>();
    } else {
      CheckIs(typeid(T));
    }
    return &static_cast<Holder<T>*>(holder_.get())->value;
  }

  void Clear() { holder_.reset(); }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  struct HolderBase {
    virtual ~HolderBase() = default;
    virtual const std::type_info& type() const = 0;
  };
  template <typename T>
  struct Holder : HolderBase {
    const std::type_info& type() const override { return typeid(T); }
    T value{};
  };

  void CheckIs(const std::type_info& wanted) const;

  std::string name_;
  std::unique_ptr<HolderBase> holder_;
};

}  // namespace headrace
