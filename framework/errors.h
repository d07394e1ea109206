// The exception family of Headrace. Every error that the library reports is an `Error`; its subclass says what kind it
// is, and its fields say where it happened. The Python bindings translate each subclass into the built-in exception
// named next to it.
//
//   Throw<InvalidArgument>("capacity must be positive, got ", capacity);
//   HR_ENFORCE(rank == 2, InvalidArgument, "expected a matrix, got rank ", rank);
//
// Thread-safety: exceptions are values; nothing here has shared state.
#pragma once

#include <cstdint>
#include <exception>
#include <locale>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "framework/export.h"

namespace headrace {

// Concatenates the arguments as `operator<<` prints them, numbers without the separators of the program's locale.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << args);
  return out.str();
}

// Base of the family. `what()` is the message followed by where it happened, as far as known. What the getters return
// is valid until the next Set….
class HEADRACE_API Error : public std::runtime_error {
 public:
  explicit Error(std::string message);
  ~Error() override;

  // The message alone, without the context.
  const std::string& message() const { return details_->message; }
  const std::string& op_type() const { return details_->op_type; }
  const std::string& variable() const { return details_->variable; }
  // Index of the offending sample in its dataset, -1 if the error is not about a sample.
  int64_t sample_index() const { return details_->sample_index; }

  // Add context on the way up. A context that is already set is kept: the innermost place is the most precise one.
  // `operands`, such as "X=[image]", tell which of the operators of its type it is, unless a variable does.
  void SetOpType(std::string_view op_type, std::string_view operands = {});
  void SetVariable(std::string_view variable);
  void SetSampleIndex(int64_t index);
  // Adds "; note" to the message.
  void AddNote(std::string_view note);

  const char* what() const noexcept override { return details_->what.c_str(); }

  // A copy of this error, or nullptr if its class does not know how to copy itself.
  virtual std::exception_ptr Copy() const { return nullptr; }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  struct Details {
    std::string message;
    std::string op_type;
    std::string operands;
    std::string variable;
    int64_t sample_index = -1;
    std::string what;
  };
  void Replace(Details details);

  // Shared by copies, so that copying an exception in flight cannot fail; never changed, only replaced.
  std::shared_ptr<const Details> details_;
};

// Declares one member of the family.
#define HEADRACE_DECLARE_ERROR(Name)          \
  class HEADRACE_API Name : public Error {    \
   public:                                    \
    using Error::Error;                       \
    ~Name() override;                         \
    std::exception_ptr Copy() const override; \
  }

HEADRACE_DECLARE_ERROR(InvalidArgument);     // ValueError: a value, shape or count that does not fit
HEADRACE_DECLARE_ERROR(TypeMismatch);        // TypeError: a dtype or a variable type that does not fit
HEADRACE_DECLARE_ERROR(OutOfRange);          // IndexError: an index outside its range
HEADRACE_DECLARE_ERROR(NotFound);            // KeyError: an operator, variable or attribute that does not exist
HEADRACE_DECLARE_ERROR(AlreadyExists);       // ValueError: a name or registration that is taken
HEADRACE_DECLARE_ERROR(FailedPrecondition);  // RuntimeError: called in a state that does not allow it
HEADRACE_DECLARE_ERROR(Unimplemented);       // NotImplementedError: no kernel for this dtype, say
HEADRACE_DECLARE_ERROR(ResourceExhausted);   // MemoryError: memory or slots ran out
HEADRACE_DECLARE_ERROR(DataLoss);            // ValueError: a corrupt program or file
HEADRACE_DECLARE_ERROR(IoError);             // OSError: a system call failed
HEADRACE_DECLARE_ERROR(Timeout);             // TimeoutError: something took longer than allowed
HEADRACE_DECLARE_ERROR(
    QueueClosed);  // headrace.errors.QueueClosedError (RuntimeError): a queue that takes nothing any more
HEADRACE_DECLARE_ERROR(EndOfData);  // headrace.errors.EOFException: a pass over the data has ended

#undef HEADRACE_DECLARE_ERROR

template <typename E, typename... Args>
[[noreturn]] void Throw(const Args&... args) {
  throw E(StrCat(args...));
}

// Throws `error` or, if it is an Error that can be copied, a copy. For an error that is kept and thrown more than once,
// perhaps by several threads: each may add context to its own.
[[noreturn]] HEADRACE_API void RethrowCopy(const std::exception_ptr& error);

// Throws `ErrorType` with the concatenated message unless `condition` holds.
#define HR_ENFORCE(condition, ErrorType, ...)                \
  do {                                                       \
    if (!(condition)) [[unlikely]] {                         \
      ::headrace::Throw<::headrace::ErrorType>(__VA_ARGS__); \
    }                                                        \
  } while (false)

}  // namespace headrace
