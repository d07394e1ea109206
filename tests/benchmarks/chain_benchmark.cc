// What an operator costs besides its arithmetic: a chain of scalar operators, run again and again.
//
//   build/release/tests/benchmarks/chain_benchmark [operators] [runs]
//
// prints the fastest and the median run, in nanoseconds per operator.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"

namespace {

using headrace::Executor;
using headrace::LoDTensor;

void Measure(const char* type, const headrace::AttributeMap& attrs, int operators, int runs) {
  headrace::ProgramDesc program;
  headrace::BlockDesc& block = program.block(0);
  block.Var("x0").tensor.dims = {1};
  for (int i = 0; i < operators; ++i) {
    const std::string out = headrace::StrCat("x", i + 1);
    block.Var(out);
    block.AppendOp({type, {{"X", {headrace::StrCat("x", i)}}}, {{"Out", {out}}}, attrs});
  }
  LoDTensor x;
  *x.Resize({1}).mutable_data<float>() = 1;
  const Executor executor;
  const auto prepared = executor.Prepare(program, {headrace::StrCat("x", operators)});
  headrace::Scope scope;
  std::vector<LoDTensor> fetched;
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    executor.Run(*prepared, &scope, {{"x0", x}}, &fetched);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
    times.push_back(time.count() / operators);
  }
  std::sort(times.begin(), times.end());
  std::printf("%-6s %5d operators: fastest %6.1f, median %6.1f ns per operator\n", type, operators, times.front(),
              times[times.size() / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  const int operators = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int runs = argc > 2 ? std::atoi(argv[2]) : 1000;
  if (operators < 1 || runs < 1) {
    std::fprintf(stderr, "usage: %s [operators] [runs]\n", argv[0]);
    return 1;
  }
  Measure("scale", {{"scale", 1.001F}}, operators, runs);
  Measure("relu", {}, operators, runs);
  Measure("assign", {}, operators, runs);
  return 0;
}
