#include "framework/errors.h"

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

// Out of line, so that each class has one vtable and one type_info, in this library, whoever throws or catches it.
InvalidArgument::~InvalidArgument() = default;
TypeMismatch::~TypeMismatch() = default;
OutOfRange::~OutOfRange() = default;
NotFound::~NotFound() = default;
AlreadyExists::~AlreadyExists() = default;
FailedPrecondition::~FailedPrecondition() = default;
Unimplemented::~Unimplemented() = default;
ResourceExhausted::~ResourceExhausted() = default;
DataLoss::~DataLoss() = default;
IoError::~IoError() = default;
Timeout::~Timeout() = default;
QueueClosed::~QueueClosed() = default;
EndOfData::~EndOfData() = default;

}  // namespace headrace
