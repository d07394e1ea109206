// Programs for tests, built layer by layer.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/backward.h"
#include "framework/executor.h"
#include "framework/program_desc.h"

namespace headrace::test {

using Ints = std::vector<int32_t>;

// A startup and a main program.
class Net {
 public:
  std::string Data(const std::string& name, const DDim& dims, DataType dtype = DataType::kFloat32,
                   int32_t lod_level = 0) {
    Declare(&main_, name).tensor = {dims, dtype, lod_level};
    return name;
  }

  // Adds an operator with one variable per slot; returns the variable of its first output slot.
  std::string Add(const std::string& type, const std::map<std::string, std::string>& inputs,
                  const std::vector<std::string>& outputs, AttributeMap attrs = {}) {
    OpDesc op{type, {}, {}, std::move(attrs)};
    for (const auto& [slot, name] : inputs) {
      op.inputs[slot] = {name};
    }
    const std::string prefix = type + "_" + std::to_string(counter_++) + ".";
    for (const std::string& slot : outputs) {
      op.outputs[slot] = {Declare(&main_, prefix + slot).name};
    }
    main_.block(0).AppendOp(op);
    return prefix + outputs.front();
  }

  std::string Parameter(const DDim& dims, float bound) {
    const std::string name = "parameter_" + std::to_string(counter_++);
    Declare(&main_, name).tensor.dims = dims;
    main_.block(0).MutableVar(name).is_parameter = true;
    Persist(name, dims);
    startup_.block(0).AppendOp(
        {"uniform_random",
         {},
         {{"Out", {name}}},
         {{"shape", dims}, {"min", -bound}, {"max", bound}, {"seed", static_cast<int32_t>(counter_)}}});
    return name;
  }

  std::string Constant(const std::string& name, const DDim& dims, float value) {
    if (!main_.block(0).HasLocalVar(name)) {
      Declare(&main_, name).tensor.dims = dims;
    }
    Persist(name, dims);
    startup_.block(0).AppendOp({"fill_constant", {}, {{"Out", {name}}}, {{"shape", dims}, {"value", value}}});
    return name;
  }

  std::string Convolution(const std::string& input, int64_t from, int64_t to, int64_t size) {
    const std::string filter = Parameter({to, from, size, size}, 1 / std::sqrt(static_cast<float>(from * size * size)));
    const std::string bias = Parameter({to}, 0.1f);
    const std::string out =
        Add("conv2d", {{"Input", input}, {"Filter", filter}}, {"Output"}, {{"paddings", Ints{1, 1}}});
    return Add("relu", {{"X", Add("elementwise_add", {{"X", out}, {"Y", bias}}, {"Out"}, {{"axis", 1}})}}, {"Out"});
  }

  std::string Pool(const std::string& input) {
    return Add("pool2d", {{"X", input}}, {"Out"}, {{"ksize", Ints{2, 2}}, {"strides", Ints{2, 2}}});
  }

  std::string Connected(const std::string& input, int64_t from, int64_t to) {
    const std::string weights = Parameter({from, to}, 1 / std::sqrt(static_cast<float>(from)));
    const std::string out = Add("mul", {{"X", input}, {"Y", weights}}, {"Out"});
    return Add("elementwise_add", {{"X", out}, {"Y", Parameter({to}, 0.1f)}}, {"Out"});
  }

  // Adds the backward pass of `loss` and one optimizer for each parameter, with its state.
  void Minimize(const std::string& loss, const std::string& optimizer, float rate) {
    const auto gradients = AppendBackward(&main_, loss);
    Constant("rate", {1}, rate);
    for (const auto& [parameter, gradient] : gradients) {
      const DDim dims = main_.block(0).GetVar(parameter).tensor.dims;
      OpDesc op{optimizer,
                {{"Param", {parameter}}, {"Grad", {gradient}}, {"LearningRate", {"rate"}}},
                {{"ParamOut", {parameter}}},
                {}};
      const auto state = [&, parameter = parameter](const std::string& slot, const DDim& state_dims, float value) {
        const std::string name = Constant(parameter + "." + slot, state_dims, value);
        op.inputs[slot] = {name};
        op.outputs[slot + "Out"] = {name};
      };
      if (optimizer == "adam") {
        state("Moment1", dims, 0);
        state("Moment2", dims, 0);
        state("Beta1Pow", {1}, 0.9f);
        state("Beta2Pow", {1}, 0.999f);
      } else if (optimizer == "momentum") {
        state("Velocity", dims, 0);
        op.attrs["mu"] = 0.9f;
      }
      main_.block(0).AppendOp(op);
    }
    parameters_ = gradients.size();
  }

  // Runs `steps` steps on one batch; returns what `fetch` was at each.
  std::vector<float> Train(const std::map<std::string, LoDTensor>& feeds, int steps, const std::string& fetch) {
    Executor executor;
    Scope scope;
    executor.Run(startup_, &scope);
    const auto prepared = executor.Prepare(main_, {fetch});
    std::vector<float> values;
    for (int i = 0; i < steps; ++i) {
      std::vector<LoDTensor> fetched;
      executor.Run(*prepared, &scope, feeds, &fetched);
      values.push_back(*fetched[0].data<float>());
    }
    return values;
  }

  ProgramDesc& main() { return main_; }
  const ProgramDesc& main() const { return main_; }
  const ProgramDesc& startup() const { return startup_; }
  size_t parameters() const { return parameters_; }

 private:
  static VarDesc& Declare(ProgramDesc* program, const std::string& name) { return program->block(0).Var(name); }

  void Persist(const std::string& name, const DDim& dims) {
    main_.block(0).MutableVar(name).persistable = true;
    VarDesc& var = Declare(&startup_, name);
    var.tensor.dims = dims;
    var.persistable = true;
  }

  ProgramDesc main_;
  ProgramDesc startup_;
  int counter_ = 0;
  size_t parameters_ = 0;
};

}  // namespace headrace::test
