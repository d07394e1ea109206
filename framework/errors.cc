#include "framework/errors.h"

#include <typeinfo>

namespace headrace {

Error::Error(std::string message) : std::runtime_error(message), message_(std::move(message)), what_(message_) {}
Error::~Error() = default;

void Error::SetOpType(std::string_view op_type) {
  if (op_type_.empty()) {
    op_type_ = op_type;
    Compose();
  }
}

void Error::SetVariable(std::string_view variable) {
  if (variable_.empty()) {
    variable_ = variable;
    Compose();
  }
}

void Error::SetSampleIndex(int64_t index) {
  if (sample_index_ < 0) {
    sample_index_ = index;
    Compose();
  }
}

void Error::Compose() {
  std::string where;
  const auto add = [&where](std::string_view part) {
    where += where.empty() ? " [" : ", ";
    where += part;
  };
  if (!op_type_.empty()) add(StrCat("operator '", op_type_, "'"));
  if (!variable_.empty()) add(StrCat("variable '", variable_, "'"));
  if (sample_index_ >= 0) add(StrCat("sample ", sample_index_));
  what_ = where.empty() ? message_ : message_ + where + "]";
}

// Out of line, so that each class has one vtable and one type_info, in this library, whoever throws or catches it. A
// class derived from one of them is not copied, since that would make it one of them.
#define HEADRACE_DEFINE_ERROR(Name)                                                  \
  Name::~Name() = default;                                                           \
  std::exception_ptr Name::Copy() const {                                            \
    return typeid(*this) == typeid(Name) ? std::make_exception_ptr(*this) : nullptr; \
  }

HEADRACE_DEFINE_ERROR(InvalidArgument)
HEADRACE_DEFINE_ERROR(TypeMismatch)
HEADRACE_DEFINE_ERROR(OutOfRange)
HEADRACE_DEFINE_ERROR(NotFound)
HEADRACE_DEFINE_ERROR(AlreadyExists)
HEADRACE_DEFINE_ERROR(FailedPrecondition)
HEADRACE_DEFINE_ERROR(Unimplemented)
HEADRACE_DEFINE_ERROR(ResourceExhausted)
HEADRACE_DEFINE_ERROR(DataLoss)
HEADRACE_DEFINE_ERROR(IoError)
HEADRACE_DEFINE_ERROR(Timeout)
HEADRACE_DEFINE_ERROR(QueueClosed)
HEADRACE_DEFINE_ERROR(EndOfData)

#undef HEADRACE_DEFINE_ERROR

void RethrowCopy(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& original) {
    if (const std::exception_ptr copy = original.Copy()) {
      std::rethrow_exception(copy);
    }
    throw;
  }
}

}  // namespace headrace
