// Small operators for the framework's tests, which do not depend on those of operators/. Registered before main.
//
//   test_scale(X; factor) → Out            factor · X, with a gradient
//   test_mul(X, Y) → Out                   X · Y, with a gradient that reads X and Y
//   test_exp(X) → Out                      with a gradient that reads Out
//   test_mean(X) → Out                     one element, with a gradient
//   test_split(X) → A, B                   X and 2 · X; its gradient takes either or both
//   test_weighted(X, Weight) → Out         X · Weight; Weight has no gradient
//   test_sgd(Param, Grad; rate) → ParamOut usually in place
//   test_increment(X) → Out                X + 1, usually in place; no gradient
//   test_share(X) → Out                    X, in the same memory
//   test_share_if_positive(X) → Out        as test_share if the first element is positive, otherwise a copy
//   test_fail_if_over_100(X) → Out         a copy of X, or an OutOfRange
//   test_fill(; shape, value) → Out
//   test_fail(X; how)                      throws: "error", "memory", "length"
//   test_take(Reader) → Out                reads data: takes from a Feed of the scope, throws EndOfData when it is
//                                          empty
//   test_touch(X) → Out                    a copy of X, not a tensor kernel
//   test_replace(X)                        puts a std::string in the place of X
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <initializer_list>
#include <string>
#include <vector>

#include "framework/lod_tensor.h"
#include "framework/program_desc.h"
#include "framework/scope.h"

namespace headrace::test {

// What test_take takes from.
using Feed = std::deque<LoDTensor>;

LoDTensor MakeTensor(const DDim& dims, const std::vector<float>& values);
std::vector<float> Values(const Tensor& tensor);

inline std::vector<float> Floats(std::initializer_list<float> values) { return values; }
void Put(Scope* scope, const std::string& name, LoDTensor value);

// Declares a float32 variable of the root block.
VarDesc& Declare(ProgramDesc* program, const std::string& name, DDim dims = {});
VarDesc& DeclareParameter(ProgramDesc* program, const std::string& name, DDim dims);

// Appends `type` to the root block, declaring outputs that do not exist yet.
const OpDesc& Append(ProgramDesc* program, const std::string& type, VarNameMap inputs, VarNameMap outputs,
                     AttributeMap attrs = {});

// y = 2 · x, with x fed.
void BuildDouble(ProgramDesc* program, const DDim& dims = {-1});
// w = w + 1, with w persistable.
void BuildCounter(ProgramDesc* program);
// Appends an operator that runs a new block of the program, always, and returns the block.
BlockDesc& AppendBlock(ProgramDesc* program);

// The message of the E that `fn` throws.
template <typename E, typename Fn>
std::string MessageOf(Fn fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "the expected error was not thrown";
  return {};
}

}  // namespace headrace::test
