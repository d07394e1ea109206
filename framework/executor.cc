#include "framework/executor.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "framework/errors.h"

namespace headrace {
namespace {

// The environment variable CPU_NUM, as in Fluid.
int CpuNumFromEnvironment() {
  const char* value = std::getenv("CPU_NUM");
  if (value == nullptr || *value == '\0') {
    return 1;
  }
  const std::string_view text(value);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  HR_ENFORCE(
      error == std::errc() && end == text.data() + text.size() && 1 <= number && number <= ThreadPool::kMaxThreads,
      InvalidArgument, "environment variable CPU_NUM: expected a number of threads in [1, ", ThreadPool::kMaxThreads,
      "], got '", text, "'");
  return number;
}

}  // namespace

Executor::Executor(Place place, int cpu_num)
    : place_(place), threads_(std::make_shared<ThreadPool>(cpu_num == 0 ? CpuNumFromEnvironment() : cpu_num)) {}

std::unique_ptr<PreparedProgram> Executor::Prepare(const ProgramDesc& program, const std::vector<std::string>& fetches,
                                                   size_t block) const {
  return std::unique_ptr<PreparedProgram>(new PreparedProgram(program, fetches, block));
}

void Executor::Run(PreparedProgram& prepared, Scope* scope, const std::map<std::string, LoDTensor>& feeds,
                   std::vector<LoDTensor>* fetched) const {
  HR_ENFORCE(scope != nullptr, InvalidArgument, "the executor needs a scope");
  prepared.Run(scope, feeds, fetched, place_, threads_.get());
}

void Executor::Run(const ProgramDesc& program, Scope* scope) const { Run(*Prepare(program), scope); }

}  // namespace headrace
