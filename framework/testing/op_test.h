// Runs one operator on given inputs, for tests with GoogleTest: those of the library, and of libraries of operators.
//
//   OpTest test("scale");
//   test.In<float>("X", {2}, {1, 2}).Attr("scale", 3.0f).Out("Out");
//   test.Run();
//   EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{3, 6}));
//
// Run checks by itself, for every operator, that the dims, dtypes and LoD levels inferred at compile time, from known
// and from unknown (-1) dims, are those of the results, and that the results are the same bits when every input lies
// one element further in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/testing/memory_declarations.h"

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
  // The dims of an input slot are known to every program, such as those of parameters: inference is not checked with
  // unknown ones.
  OpTest& Known(const std::string& slot) {
    for (const std::string& name : op_.inputs.at(slot)) {
      known_.insert(name);
    }
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
  // those in double, and the shapes inferred for the gradient at compile time, from known and from unknown (-1) dims,
  // with the actual ones. The declarations of the gradient about its memory are checked as in Run.
  void CheckGradient(const std::vector<std::string>& ins, const std::vector<std::string>& outs,
                     double tolerance = 1e-7);

 private:
  struct Input {
    std::string name;
    LoDTensor tensor;
    TensorSpec declared;
  };

  // Which dims of the inputs a program does not know.
  enum class Unknown { kNone, kFirst, kAll };
  static constexpr std::array<Unknown, 3> kUnknowns = {Unknown::kNone, Unknown::kFirst, Unknown::kAll};

  OpTest& AddInput(const std::string& slot, LoDTensor tensor, LoD lod);
  void FillScope(Scope* scope, bool shifted) const;
  std::map<std::string, LoDTensor> Gradients(const std::vector<std::string>& ins, const std::vector<std::string>& outs,
                                             DataType type) const;
  double Objective(const std::vector<std::string>& outs) const;
  void DeclareForward(BlockDesc* block, Unknown unknown) const;
  void CheckInference() const;
  void CheckInferenceOf(const std::vector<OpDesc>& gradients, const Scope& scope) const;
  void CheckShifted() const;

  OpDesc op_;
  std::vector<Input> inputs_;
  std::set<std::string> known_;
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

// ---- Implementation ----

namespace op_test_internal {

// A linear congruential generator: the same numbers everywhere.
class Generator {
 public:
  explicit Generator(uint32_t seed) : state_(seed * 2654435761u + 12345) {}
  double Uniform() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }
  size_t Below(size_t n) { return static_cast<size_t>(Uniform() * static_cast<double>(n)); }

 private:
  uint64_t state_;
};

inline void RunOp(OpDesc op, const Scope& scope) {
  OpRegistry::Check(op);
  OpRegistry::Create(op)->Run(scope, CPUPlace());
}

inline void CheckMemory(const OpDesc& op, const std::function<void(Scope*)>& fill) {
  for (const std::string& fault : BrokenMemoryDeclarations(op, fill)) {
    ADD_FAILURE() << fault;
  }
}

// Copies the inputs of `op` that are tensors from one scope to another.
inline void CopyInputs(const OpDesc& op, const Scope& from, Scope* to) {
  for (const std::string& name : op.InputNames()) {
    if (name != kEmptyVarName && from.GetVar(name).IsType<LoDTensor>()) {
      const auto& tensor = from.GetVar(name).Get<LoDTensor>();
      auto* copy = to->Var(name)->GetMutable<LoDTensor>();
      copy->CopyFrom(tensor);
      copy->set_lod(tensor.lod());
    }
  }
}

// The same elements, one element further in memory that is aligned: as foreign memory may lie.
inline LoDTensor Shifted(const LoDTensor& tensor) {
  const size_t step = SizeOf(tensor.dtype());
  const auto memory = Allocation::OnHeap(tensor.nbytes() + step);
  auto* start = static_cast<std::byte*>(memory->data()) + step;
  if (tensor.nbytes() > 0) {
    std::memcpy(start, tensor.raw_data(), tensor.nbytes());
  }
  auto foreign = Allocation::Foreign(start, tensor.nbytes(), [memory](void*) {});
  return LoDTensor(Tensor(std::move(foreign), tensor.dtype(), tensor.dims()), tensor.lod());
}

inline LoDTensor ToFloat32(const LoDTensor& tensor) {
  LoDTensor narrow;
  narrow.Resize(tensor.dims());
  std::copy_n(tensor.data<double>(), tensor.numel(), narrow.mutable_data<float>());
  narrow.set_lod(tensor.lod());
  return narrow;
}

// Checks that the declarations of the outputs of `op` match the variables in `scope`. Those that are not tensors are
// skipped.
inline void CheckDeclared(const BlockDesc& block, const OpDesc& op, const Scope& scope) {
  for (const std::string& name : op.OutputNames()) {
    if (name == kEmptyVarName || !scope.GetVar(name).IsType<LoDTensor>()) {
      continue;
    }
    const TensorSpec& inferred = block.GetVar(name).tensor;
    const auto& actual = scope.GetVar(name).Get<LoDTensor>();
    EXPECT_TRUE(Matches(inferred.dims, actual.dims()))
        << op.type << ", " << name << ": inferred " << ToString(inferred.dims) << ", actual "
        << ToString(actual.dims());
    EXPECT_EQ(DataTypeName(inferred.dtype), DataTypeName(actual.dtype())) << op.type << ", " << name;
    EXPECT_EQ(static_cast<size_t>(inferred.lod_level), actual.lod_level())
        << op.type << ", " << name << ": LoD levels inferred, actual";
  }
}

// Declares the variables of `op` that are not declared yet, except outputs that are not needed, and appends it.
inline void Append(BlockDesc* block, const OpDesc& op) {
  for (const std::string& name : op.OutputNames()) {
    if (name != kEmptyVarName) {
      block->Var(name);
    }
  }
  block->AppendOp(op);
}

}  // namespace op_test_internal

inline void ExpectContains(const std::string& what, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(what.find(part), std::string::npos) << "'" << what << "' does not contain '" << part << "'";
  }
}

inline std::vector<double> Numbers(int64_t n, double low, double high, uint32_t seed) {
  op_test_internal::Generator generator(seed);
  std::vector<double> numbers(static_cast<size_t>(n));
  std::generate(numbers.begin(), numbers.end(), [&] { return low + (high - low) * generator.Uniform(); });
  return numbers;
}

inline std::vector<double> DistinctNumbers(int64_t n, double gap, uint32_t seed) {
  op_test_internal::Generator generator(seed);
  std::vector<double> numbers(static_cast<size_t>(n));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = (static_cast<double>(i) - static_cast<double>(n) / 2 + 0.37) * gap * 2;
    std::swap(numbers[i], numbers[generator.Below(i + 1)]);
  }
  return numbers;
}

inline OpTest& OpTest::AddInput(const std::string& slot, LoDTensor tensor, LoD lod) {
  auto& names = op_.inputs[slot];
  names.push_back(slot + "_" + std::to_string(names.size()));
  const TensorSpec spec{tensor.dims(), tensor.dtype(), static_cast<int32_t>(lod.size())};
  tensor.set_lod(std::move(lod));
  inputs_.push_back({names.back(), std::move(tensor), spec});
  return *this;
}

inline OpTest& OpTest::Declare(const std::string& slot, const DDim& dims, DataType dtype, int32_t lod_level) {
  auto& names = op_.inputs[slot];
  names.push_back(slot + "_" + std::to_string(names.size()));
  inputs_.push_back({names.back(), LoDTensor(), {dims, dtype, lod_level}});
  return *this;
}

inline OpTest& OpTest::Empty(const std::string& slot) {
  op_.inputs[slot].emplace_back(kEmptyVarName);
  return *this;
}

inline OpTest& OpTest::Out(const std::string& slot, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    op_.outputs[slot].push_back(slot + "_out_" + std::to_string(i));
  }
  return *this;
}

inline OpTest& OpTest::InPlace(const std::string& out, const std::string& in) {
  op_.outputs[out] = {op_.inputs.at(in).front()};
  return *this;
}

inline void OpTest::FillScope(Scope* scope, bool shifted) const {
  for (const Input& input : inputs_) {
    auto* variable = scope->Var(input.name)->GetMutable<LoDTensor>();
    if (shifted) {
      *variable = op_test_internal::Shifted(input.tensor);
    } else {
      variable->CopyFrom(input.tensor);
      variable->set_lod(input.tensor.lod());
    }
  }
  for (const std::string& name : op_.OutputNames()) {
    scope->Var(name);
  }
}

inline void OpTest::Run() {
  scope_ = std::make_unique<Scope>();
  FillScope(scope_.get(), false);
  op_test_internal::RunOp(op_, *scope_);
  CheckInference();
  if (deterministic_) {
    CheckShifted();
    op_test_internal::CheckMemory(op_, [this](Scope* scope) { FillScope(scope, false); });
  }
}

inline void OpTest::CheckShifted() const {
  Scope scope;
  FillScope(&scope, true);
  op_test_internal::RunOp(op_, scope);
  for (const std::string& name : op_.OutputNames()) {
    if (name == kEmptyVarName) {
      continue;
    }
    const auto& expected = scope_->GetVar(name).Get<LoDTensor>();
    const auto& actual = scope.GetVar(name).Get<LoDTensor>();
    ASSERT_EQ(actual.dims(), expected.dims()) << name;
    EXPECT_EQ(actual.nbytes() == 0 ? 0 : std::memcmp(actual.raw_data(), expected.raw_data(), actual.nbytes()), 0)
        << op_.type << ": " << name << " depends on where the inputs lie in memory";
  }
}

inline void OpTest::DeclareForward(BlockDesc* block, Unknown unknown) const {
  for (const Input& input : inputs_) {
    TensorSpec& spec = block->Var(input.name).tensor;
    spec = input.declared;
    if (!known_.contains(input.name) && unknown != Unknown::kNone) {
      const size_t hidden = unknown == Unknown::kFirst ? std::min<size_t>(1, spec.dims.size()) : spec.dims.size();
      std::fill_n(spec.dims.begin(), hidden, -1);
    }
  }
  op_test_internal::Append(block, op_);
}

inline void OpTest::CheckInference() const {
  for (const Unknown unknown : kUnknowns) {
    ProgramDesc program;
    DeclareForward(&program.block(0), unknown);
    op_test_internal::CheckDeclared(program.block(0), op_, *scope_);
  }
}

inline void OpTest::CheckInferenceOf(const std::vector<OpDesc>& gradients, const Scope& scope) const {
  for (const Unknown unknown : kUnknowns) {
    ProgramDesc program;
    BlockDesc& block = program.block(0);
    DeclareForward(&block, unknown);
    for (const std::string& name : op_.OutputNames()) {
      if (name != kEmptyVarName) {
        const TensorSpec spec = block.GetVar(name).tensor;
        block.Var(GradVarName(name)).tensor = spec;
      }
    }
    for (const OpDesc& gradient : gradients) {
      op_test_internal::Append(&block, gradient);
      op_test_internal::CheckDeclared(block, gradient, scope);
    }
  }
}

inline DDim OpTest::InferredDims(const std::string& slot, size_t i) const {
  ProgramDesc program;
  DeclareForward(&program.block(0), Unknown::kNone);
  return program.block(0).GetVar(op_.Output(slot).at(i)).tensor.dims;
}

inline const LoDTensor& OpTest::Output(const std::string& slot, size_t i) const {
  return scope_->GetVar(op_.Output(slot).at(i)).Get<LoDTensor>();
}

namespace op_test_internal {

// The weights of the linear combination of outputs whose derivatives are checked.
inline std::vector<double> Weights(const std::string& slot, int64_t n) {
  return Numbers(n, -1, 1, static_cast<uint32_t>(std::hash<std::string>()(slot)));
}

}  // namespace op_test_internal

inline double OpTest::Objective(const std::vector<std::string>& outs) const {
  Scope scope;
  FillScope(&scope, false);
  op_test_internal::RunOp(op_, scope);
  double sum = 0;
  for (const std::string& slot : outs) {
    for (const std::string& name : op_.Output(slot)) {
      const auto& tensor = scope.GetVar(name).Get<LoDTensor>();
      const std::vector<double> weights = op_test_internal::Weights(name, tensor.numel());
      for (size_t i = 0; i < weights.size(); ++i) {
        sum += weights[i] * tensor.data<double>()[i];
      }
    }
  }
  return sum;
}

inline std::map<std::string, LoDTensor> OpTest::Gradients(const std::vector<std::string>& ins,
                                                          const std::vector<std::string>& outs, DataType type) const {
  const auto convert = [type](const LoDTensor& tensor) {
    return type == DataType::kFloat32 && tensor.dtype() == DataType::kFloat64 ? op_test_internal::ToFloat32(tensor)
                                                                              : tensor;
  };
  Scope scope;
  FillScope(&scope, false);
  for (const Input& input : inputs_) {
    *scope.Var(input.name)->GetMutable<LoDTensor>() = convert(input.tensor);
  }
  op_test_internal::RunOp(op_, scope);
  for (const std::string& slot : outs) {
    for (const std::string& name : op_.Output(slot)) {
      LoDTensor weights;
      const auto& out = scope.GetVar(name).Get<LoDTensor>();
      weights.Resize(out.dims());
      if (type == DataType::kFloat64) {
        weights.set_lod(out.lod());  // gradients may have none, which must make no difference
      }
      std::ranges::copy(op_test_internal::Weights(name, weights.numel()), weights.mutable_data<double>());
      *scope.Var(GradVarName(name))->GetMutable<LoDTensor>() = convert(weights);
    }
  }

  OpDesc forward = op_;
  OpRegistry::Check(forward);
  std::map<std::string, LoDTensor> gradients;
  std::vector<OpDesc> ops = OpRegistry::Get(op_.type).gradient(forward);
  for (OpDesc& gradient : ops) {
    for (auto& [slot, names] : gradient.inputs) {
      for (std::string& name : names) {
        if (scope.FindVar(name) == nullptr) {
          name = kEmptyVarName;
        }
      }
    }
    std::erase_if(gradient.inputs, [](const auto& slot) {
      return std::ranges::all_of(slot.second, [](const std::string& name) { return name == kEmptyVarName; });
    });
    for (auto& [slot, names] : gradient.outputs) {
      for (std::string& name : names) {
        const bool wanted = std::ranges::any_of(ins, [&](const std::string& in) {
          return std::ranges::any_of(op_.Input(in),
                                     [&](const std::string& variable) { return GradVarName(variable) == name; });
        });
        if (wanted) {
          scope.Var(name);
        } else {
          name = kEmptyVarName;
        }
      }
    }
    if (type == DataType::kFloat64 && deterministic_) {
      op_test_internal::CheckMemory(gradient, [&](Scope* to) { op_test_internal::CopyInputs(gradient, scope, to); });
    }
    op_test_internal::RunOp(gradient, scope);
    for (const std::string& name : gradient.OutputNames()) {
      if (name != kEmptyVarName) {
        gradients[name] = scope.GetVar(name).Get<LoDTensor>();
      }
    }
  }
  if (type == DataType::kFloat64) {
    CheckInferenceOf(ops, scope);
  }
  return gradients;
}

inline void OpTest::CheckGradient(const std::vector<std::string>& ins, const std::vector<std::string>& outs,
                                  double tolerance) {
  Run();
  ASSERT_TRUE(OpRegistry::Get(op_.type).gradient) << op_.type << " has no gradient";
  const auto gradients = Gradients(ins, outs, DataType::kFloat64);
  // An operator whose attributes say that its input is float64 cannot run in float32.
  const bool in_either = !op_.attrs.contains("in_dtype");
  const auto single = Gradients(ins, outs, in_either ? DataType::kFloat32 : DataType::kFloat64);

  const double step = 1e-5;
  for (Input& input : inputs_) {
    const bool wanted = std::ranges::any_of(
        ins, [&](const std::string& in) { return std::ranges::count(op_.Input(in), input.name) > 0; });
    if (!wanted) {
      continue;
    }
    ASSERT_TRUE(gradients.contains(GradVarName(input.name))) << op_.type << " gives no gradient of " << input.name;
    const LoDTensor& gradient = gradients.at(GradVarName(input.name));
    const LoDTensor& in_float32 = single.at(GradVarName(input.name));
    ASSERT_EQ(gradient.dims(), input.tensor.dims()) << input.name;
    double* x = input.tensor.mutable_data<double>();
    for (int64_t i = 0; i < input.tensor.numel(); ++i) {
      const double kept = x[i];
      x[i] = kept + step;
      const double above = Objective(outs);
      x[i] = kept - step;
      const double below = Objective(outs);
      x[i] = kept;
      const double expected = (above - below) / (2 * step);
      const double actual = gradient.data<double>()[i];
      EXPECT_NEAR(actual, expected, tolerance * std::max(1.0, std::abs(expected)))
          << op_.type << ": d/d" << input.name << "[" << i << "]";
      if (in_either) {
        EXPECT_NEAR(in_float32.data<float>()[i], actual, 1e-4 * std::max(1.0, std::abs(actual)))
            << op_.type << " in float32: d/d" << input.name << "[" << i << "]";
      }
    }
  }
}

}  // namespace headrace
