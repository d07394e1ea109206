#include "framework/errors.h"

#include <typeinfo>

namespace headrace {

Error::Error(std::string message)
    : std::runtime_error(message),
      details_(std::make_shared<const Details>(Details{message, {}, {}, {}, -1, std::move(message)})) {}
Error::~Error() = default;

void Error::AddNote(std::string_view note) {
  Details details = *details_;
  details.message += StrCat("; ", note);
  Replace(std::move(details));
}

void Error::SetOpType(std::string_view op_type, std::string_view operands) {
  if (details_->op_type.empty()) {
    Details details = *details_;
    details.op_type = op_type;
    details.operands = operands;
    Replace(std::move(details));
  }
}

void Error::SetVariable(std::string_view variable) {
  if (details_->variable.empty()) {
    Details details = *details_;
    details.variable = variable;
    Replace(std::move(details));
  }
}

void Error::SetSampleIndex(int64_t index) {
  if (details_->sample_index < 0) {
    Details details = *details_;
    details.sample_index = index;
    Replace(std::move(details));
  }
}

void Error::Replace(Details details) {
  std::string where;
  const auto add = [&where](std::string_view part) {
    where += where.empty() ? " [" : ", ";
    where += part;
  };
  if (!details.op_type.empty()) add(StrCat("operator '", details.op_type, "'"));
  if (!details.variable.empty()) {
    add(StrCat("variable '", details.variable, "'"));
  } else if (!details.operands.empty()) {
    where += StrCat(" (", details.operands, ")");
  }
  if (details.sample_index >= 0) add(StrCat("sample ", details.sample_index));
  details.what = where.empty() ? details.message : details.message + where + "]";
  details_ = std::make_shared<const Details>(std::move(details));
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
