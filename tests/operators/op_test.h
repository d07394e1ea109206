// Runs one operator on given inputs, for tests.
//
//   OpTest test("scale");
//   test.In<float>("X", {2}, {1, 2}).Attr("scale", 3.0f).Out("Out");
//   test.Run();
//   EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{3, 6}));
//
// Run checks by itself, for every operator, that the dims and dtypes inferred at compile time are those of the results,
// and that the results are the same bits when every input lies one element further in memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/lod_tensor.h"
#include "framework/program_desc.h"
#include "framework/scope.h"

namespace headrace {

// `n` numbers in [low, high), the same for the same arguments.
std::vector<double> Numbers(int64_t n, double low, double high, uint32_t seed = 1);
// The same, at least `gap` apart from one another and from zero: for functions that are not differentiable where two
// are equal.
std::vector<double> DistinctNumbers(int64_t n, double gap, uint32_t seed = 1);

template <typename T>
std::vector<T> As(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

class OpTest {
 public:
  explicit OpTest(std::string type) { op_.type = std::move(type); }

  // Adds a variable to an input slot.
  template <typename T>
  OpTest& In(const std::string& slot, const DDim& dims, const std::vector<T>& values, LoD lod = {}) {
    LoDTensor tensor;
    tensor.Resize(dims);
    T* to = tensor.mutable_data<T>();
    EXPECT_EQ(static_cast<size_t>(tensor.numel()), values.size()) << slot;
    for (size_t i = 0; i < values.size(); ++i) {
      to[i] = values[i];
    }
    return AddInput(slot, std::move(tensor), std::move(lod));
  }
  // Adds a variable that exists for compile-time inference only; its dims may be -1.
  OpTest& Declare(const std::string& slot, const DDim& dims, DataType dtype = DataType::kFloat32,
                  int32_t lod_level = 0);
  // Puts kEmptyVarName into an input slot.
  OpTest& Empty(const std::string& slot);
  // Adds `count` variables to an output slot.
  OpTest& Out(const std::string& slot, size_t count = 1);
  // The output slot holds the (first) variable of the input slot.
  OpTest& InPlace(const std::string& out, const std::string& in);
  OpTest& Attr(const std::string& name, Attribute value) {
    op_.attrs[name] = std::move(value);
    return *this;
  }
  // Each run gives other results.
  OpTest& NotDeterministic() {
    deterministic_ = false;
    return *this;
  }

  void Run();

  const LoDTensor& Output(const std::string& slot, size_t i = 0) const;
  DDim Dims(const std::string& slot, size_t i = 0) const { return Output(slot, i).dims(); }
  template <typename T>
  std::vector<T> Get(const std::string& slot, size_t i = 0) const {
    const LoDTensor& tensor = Output(slot, i);
    const T* data = tensor.data<T>();
    return std::vector<T>(data, data + tensor.numel());
  }

  // Dims of an output as inferred at compile time.
  DDim InferredDims(const std::string& slot, size_t i = 0) const;

  // Compares the derivatives of the operator's gradient with central differences, in double: those of a random linear
  // combination of the output slots `outs`, by each element of the input slots `ins`. Compares those in float32 with
  // those in double, and what is inferred for the gradient at compile time with what it gives.
  void CheckGradient(const std::vector<std::string>& ins, const std::vector<std::string>& outs,
                     double tolerance = 1e-7);

 private:
  struct Input {
    std::string name;
    LoDTensor tensor;
    TensorSpec declared;
  };

  OpTest& AddInput(const std::string& slot, LoDTensor tensor, LoD lod);
  void FillScope(Scope* scope, bool shifted) const;
  std::map<std::string, LoDTensor> Gradients(const std::vector<std::string>& ins, const std::vector<std::string>& outs,
                                             DataType type) const;
  double Objective(const std::vector<std::string>& outs) const;
  void CheckInference() const;
  void CheckShifted() const;

  OpDesc op_;
  std::vector<Input> inputs_;
  bool deterministic_ = true;
  std::unique_ptr<Scope> scope_;
};

// Fails unless `what` contains each of `parts`.
void ExpectContains(const std::string& what, const std::vector<std::string>& parts);

// Checks that `function` throws `ErrorType` with a message that contains each of `parts`.
template <typename ErrorType>
void ExpectThrows(const std::function<void()>& function, const std::vector<std::string>& parts) {
  try {
    function();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ErrorType& error) {
    ExpectContains(error.what(), parts);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error was thrown: " << error.what();
  }
}

// Checks that running `test` throws.
template <typename ErrorType, typename... Parts>
void ExpectRunThrows(OpTest& test, const Parts&... parts) {
  ExpectThrows<ErrorType>([&] { test.Run(); }, {parts...});
}

// Checks that inference at compile time throws.
template <typename ErrorType, typename... Parts>
void ExpectInferThrows(const OpTest& test, const std::string& out, const Parts&... parts) {
  ExpectThrows<ErrorType>([&] { test.InferredDims(out); }, {parts...});
}

}  // namespace headrace
