// The backward pass of a block: which operators compute the gradients that are asked for, and appending them.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/block_desc.h"
#include "framework/gradient_influence.h"
#include "framework/op_desc.h"
#include "framework/op_info.h"
#include "framework/op_role.h"
#include "framework/operator.h"
#include "framework/value_versions.h"

namespace headrace {

// Appends an operator with that role.
void AppendBackwardOp(BlockDesc* to, OpDesc op, int32_t role = kRoleBackward);

// Plans the gradient of one block and then appends it.
class BackwardPass {
 public:
  // `end`: the operators from it on do not matter. `outer`: that of the block around this one, whose operator
  // `outer_index` runs this one; nullptr: the root block.
  BackwardPass(BlockDesc& block, size_t end, const Names& no_grad, const Names& influenced, Findings* findings,
               const BackwardPass* outer, size_t outer_index);

  // For a block that is run by an operator: until nothing is added, since a step may be followed by itself. `own` are
  // variables of the block itself that depend on a parameter before its first operator.
  void PropagateInfluence(const Names& own = {});
  bool IsInfluenced(const std::string& name) const { return influenced_.contains(name); }

  // The gradient of the last version of `name` will be given, or a part of it.
  void Expect(const std::string& name) { ++contributions_[name]; }
  // Plans to compute, from the gradients that are expected, those that depend on parameters.
  void Plan();

  // Whether the gradient of what `name` is before the first operator gets contributions.
  bool Makes(const std::string& name) const { return contributions_.contains(values_.Key(name, 0)); }
  // The variables of the blocks around this one of which that is true.
  Names MadeOutside() const;

  // Prepares the block itself: values that will be overwritten are saved, operators with blocks keep their steps.
  void FinishForward();
  // What is emitted goes to the end of `to`: this block, if it is the root block, or a new one within it.
  void EmitTo(BlockDesc* to, const std::string& suffix);
  // The variable in `to` for the gradient of the last version of `name` that is given, or for a part of it.
  std::string DeclareGiven(const std::string& name);
  // Appends the gradient operators.
  void Emit();
  // The variable with the gradient of what `name` was before the first operator. Only if Makes(name).
  std::string Made(const std::string& name) { return Total(values_.Key(name, 0)); }

  // For the root block. Whether the gradient of `name` gets contributions. Throws InvalidArgument if `name` is
  // overwritten after it has contributed, since it would not be clear which value the gradient belongs to.
  bool Reaches(const std::string& name) const;
  // The variable with the gradient of a key that gets contributions.
  std::string Total(const std::string& key);
  bool GradientNameIsTaken(const std::string& suffix) const;

 private:
  class Steps;

  // A gradient operator that will be appended.
  struct Step {
    std::vector<std::string> sums;  // keys of gradients that must be added up before it runs
    OpDesc op;                      // no type: nothing but the sums
    // The names in `op` that are not those of the forward pass: gradients → their key; what the gradient maker made up
    // → "". In place, the gradients of an input and an output have one name.
    std::map<std::string, std::string> renamed_inputs;
    std::map<std::string, std::string> renamed_outputs;
    // Of an operator with a block: its place, how its steps are differentiated, the slot of their scopes, and by
    // attribute of `op` the variables in the block whose gradients a step is given and makes.
    size_t index = 0;
    std::shared_ptr<BackwardPass> inner;
    std::string scopes;
    std::map<std::string, std::vector<std::string>> given;
    std::map<std::string, StepsGradient::Made> made;
  };
  // What a gradient operator computes from, and so what a variable is that a gradient maker made up: values alone,
  // gradients, or gradients that there are not, so that there is no such operator or variable either.
  enum class Source { kValues, kGradients, kMissingGradients };
  // v@GRAD → v, for what the gradient operators of an operator read and write.
  struct GradientNames {
    std::map<std::string, std::string> read;
    std::map<std::string, std::string> written;
  };

  void PlanOperator(size_t index);
  GradientNames NamesOfGradients(const OpDesc& op) const;
  void PlanGradient(size_t index, const GradientNames& names, OpDesc gradient);
  Source PlanInputs(size_t index, const GradientNames& names, OpDesc* gradient, Step* step);
  std::vector<std::string> PlanOutputs(size_t index, const GradientNames& names, Source source, OpDesc* gradient,
                                       Step* step);
  void DropUnreadSteps(size_t begin);
  // The pass of a step of `block`, which operator `index` runs: see PropagateInfluence and Plan.
  std::shared_ptr<BackwardPass> PlannedStep(BlockDesc& block, size_t index, const Names& own, const Names& given) const;
  void PlanBlock(size_t index, const BlockDesc& inner);
  void PlanSteps(size_t index, const StepsGradientMaker& maker);
  void Contribute(const std::string& name, size_t index);

  std::string Unique(const std::string& gradient) const { return gradient + suffix_; }
  std::string Gradient(const std::string& key) const { return Unique(GradVarName(key)); }
  std::string Partial(const std::string& gradient, size_t i) const {
    return gradient + "@RENAME@" + std::to_string(i) + suffix_;
  }
  std::string NextOutput(const std::string& key);
  void Declare(const std::string& name, const std::string& like);
  void EmitSum(const std::string& key);
  void EmitStep(const Step& step);
  void EmitSteps(const Step& step, OpDesc op);
  BlockDesc& StartEmitting(BlockDesc* to, const std::string& suffix);

  BlockDesc& block_;
  const size_t end_;
  const Names& no_grad_;
  Names influenced_;  // variables that depend on a parameter, parameters included
  Findings* const findings_;
  const bool is_step_;  // whether an operator runs the block, perhaps many times
  ValueVersions values_;
  std::vector<bool> depends_;  // whether an operator reads what is influenced
  std::vector<Step> steps_;
  std::map<std::string, Source> made_up_;        // by gradient makers, for their own use
  std::map<std::string, size_t> contributions_;  // key → how many operators contribute to its gradient
  Names used_;                                   // keys to which others contribute than the operator that overwrites it

  BlockDesc* to_ = nullptr;
  std::string suffix_;
  std::map<std::string, size_t> emitted_;  // key → contributions appended so far
  Names summed_;
};

}  // namespace headrace
