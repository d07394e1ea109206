// recurrent, recurrent_grad: run a block once for each step of sequences. The block has variables of its own, with the
// names of the sequences, for what a step sees of them and adds to them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/wait_hook.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/control_flow/block_op.h"

namespace headrace::ops {
namespace {

// Step `t` of a sequence [steps, ...], sharing its memory.
LoDTensor StepOf(const LoDTensor& sequence, int64_t t) {
  Tensor step = sequence.Slice(t, t + 1);
  step.Resize(DDim(sequence.dims().begin() + 1, sequence.dims().end()));
  return LoDTensor(std::move(step));
}

// Puts step `t` of `steps` into its sequence, which `t` = `first`, the first step to be put, allocates.
void PutStep(const std::string& name, const LoDTensor& step, int64_t t, int64_t first, int64_t steps,
             LoDTensor* sequence) {
  HR_ENFORCE(step.initialized(), FailedPrecondition, "the block has not written '", name, "' in step ", t);
  DDim dims = step.dims();
  dims.insert(dims.begin(), steps);
  if (t == first) {
    *sequence = LoDTensor();
    sequence->Resize(dims).mutable_data(step.dtype());
  }
  HR_ENFORCE(sequence->dims() == dims && sequence->dtype() == step.dtype(), InvalidArgument, "'", name, "' is ",
             DataTypeName(step.dtype()), " of dims ", ToString(step.dims()), " in step ", t, ", but step ", first,
             " has made the sequence ", DataTypeName(sequence->dtype()), " of dims ", ToString(sequence->dims()));
  if (step.nbytes() != 0) {
    std::memcpy(static_cast<char*>(sequence->raw_mutable_data()) + static_cast<size_t>(t) * step.nbytes(),
                step.raw_data(), step.nbytes());
  }
}

void EnforceSameSize(const char* a, size_t size_a, const char* b, size_t size_b) {
  HR_ENFORCE(size_a == size_b, InvalidArgument, "'recurrent': ", a, " and ", b,
             " belong together, one for each state, but there are ", size_a, " and ", size_b);
}

class RecurrentOp : public BlockOp {
 public:
  explicit RecurrentOp(OpDesc desc)
      : BlockOp(std::move(desc), "step_scopes"),
        ex_states_(Attr<std::vector<std::string>>("ex_states")),
        states_(Attr<std::vector<std::string>>("states")) {}

  void Unbind() override {
    BlockOp::Unbind();
    steps_.Clear();
  }

  void Prepare(const BlockDesc& block) override {
    EnforceSameSize("attributes ex_states", ex_states_.size(), "states", states_.size());
    EnforceSameSize("attribute ex_states", ex_states_.size(), "input initial_states", Inputs("initial_states").size());
    HR_ENFORCE(!Inputs("inputs").empty(), InvalidArgument, "'recurrent' needs a sequence in slot 'inputs'");
    std::vector<std::string> given = Inputs("inputs");
    given.insert(given.end(), ex_states_.begin(), ex_states_.end());
    PrepareBlock(block, given);
    for (const auto* names : {&std::as_const(given), &states_, &Outputs("outputs")}) {
      for (const std::string& name : *names) {
        HR_ENFORCE(runner().block().HasLocalVar(name), NotFound, "'recurrent': block ", runner().block().index(),
                   " declares no variable '", name, "' of its own");
      }
    }
    std::vector<std::string> reads;
    std::vector<std::string> writes;
    AddInnerNames(block, desc(), &reads, &writes);
    HR_ENFORCE(writes.empty(), InvalidArgument, "'recurrent': its block writes '", writes.empty() ? "" : writes.front(),
               "', which belongs to the block around it; values for the next step are states");
  }

 private:
  // A step's own variables, in the order of the slots and attributes that name them.
  struct Step {
    std::vector<Variable*> inputs;
    std::vector<Variable*> ex_states;
    std::vector<Variable*> states;
    std::vector<Variable*> outputs;
  };

  Step FindStep(const Scope& scope) const {
    return {scope.GetVars(Inputs("inputs")), scope.GetVars(ex_states_), scope.GetVars(states_),
            scope.GetVars(Outputs("outputs"))};
  }

  void RunImpl(const Scope& scope, const Place& place) override {
    const ExecutionContext& ctx = Bind(scope);
    const int64_t steps = Steps(ctx);
    Start(ctx, scope, Attr<bool>("is_train"));
    PoolVector<LoDTensor> states;
    for (size_t k = 0; k < ctx.InputSize("initial_states"); ++k) {
      states.push_back(ctx.Input("initial_states", k));
    }
    const bool reverse = Attr<bool>("reverse");
    const int64_t first = reverse ? steps - 1 : 0;
    for (int64_t i = 0; i < steps; ++i) {
      ScopedWaitHook::CallIfDue();
      const int64_t t = reverse ? steps - 1 - i : i;
      const Scope& step_scope = NextStep(scope);
      const Step& step = steps_.At(step_scope, [&] { return FindStep(step_scope); });
      for (size_t k = 0; k < step.inputs.size(); ++k) {
        *step.inputs[k]->GetMutable<LoDTensor>() = StepOf(ctx.Input("inputs", k), t);
      }
      for (size_t k = 0; k < states.size(); ++k) {
        *step.ex_states[k]->GetMutable<LoDTensor>() = std::move(states[k]);
      }
      runner().Run(step_scope, place);
      for (size_t k = 0; k < states.size(); ++k) {
        states[k] = Written(*step.states[k]);
      }
      for (size_t k = 0; k < step.outputs.size(); ++k) {
        const Variable& output = *step.outputs[k];
        PutStep(output.name(), output.Get<LoDTensor>(), t, first, steps, ctx.Output("outputs", k));
      }
      EndStep();
    }
  }

  static int64_t Steps(const ExecutionContext& ctx) {
    int64_t steps = -1;
    for (size_t k = 0; k < ctx.InputSize("inputs"); ++k) {
      const LoDTensor& sequence = ctx.Input("inputs", k);
      const std::string& name = ctx.InputVar("inputs", k)->name();
      HR_ENFORCE(!sequence.dims().empty() && sequence.dims()[0] > 0 && (steps < 0 || sequence.dims()[0] == steps),
                 InvalidArgument, "'", name, "' in input slot 'inputs' of 'recurrent': expected dims [",
                 steps < 0 ? std::string("steps") : std::to_string(steps), ", ...], got ", ToString(sequence.dims()));
      steps = sequence.dims()[0];
    }
    return steps;
  }

  static const LoDTensor& Written(const Variable& state) {
    const auto& tensor = state.Get<LoDTensor>();
    if (!tensor.initialized()) {
      FailedPrecondition error(StrCat("'", state.name(), "', which 'recurrent' reads, has not been written yet"));
      error.SetVariable(state.name());
      throw error;
    }
    return tensor;
  }

  const std::vector<std::string> ex_states_;
  const std::vector<std::string> states_;
  ScopeBindings<Step> steps_;
};

// The lists in its attributes have a place for each variable of a slot; framework/backward.cc fills them in.
class RecurrentGradOp : public OperatorBase {
 public:
  explicit RecurrentGradOp(OpDesc desc) : OperatorBase(std::move(desc)) {}

  void Prepare(const BlockDesc& block) override {
    std::vector<std::string> given = List("given_outputs");
    const auto& states = List("given_states");
    for (const std::string& name : states) {
      if (std::find(given.begin(), given.end(), name) == given.end()) {
        given.push_back(name);
      }
    }
    const size_t count = states.size();
    HR_ENFORCE(List("given_outputs").size() == Inputs("outputs@GRAD").size() &&
                   List("made_inputs").size() == Outputs("inputs@GRAD").size() &&
                   List("made_parameters").size() == Outputs("parameters@GRAD").size() &&
                   List("states").size() == count && List("made_states").size() == count &&
                   Outputs("initial_states@GRAD").size() == count,
               InvalidArgument, "'recurrent_grad': its attributes and slots must have a place for each variable");
    runner_.emplace(block, Attr<BlockRef>("sub_block"), given, /*is_gradient=*/true);
    for (const char* list : {"given_outputs", "given_states", "made_inputs", "made_states", "made_parameters"}) {
      for (const std::string& name : List(list)) {
        HR_ENFORCE(runner_->block().HasLocalVar(name), NotFound, "attribute '", list, "': block ",
                   runner_->block().index(), " declares no variable '", name, "'");
      }
    }
  }

  void Unbind() override {
    OperatorBase::Unbind();
    if (runner_.has_value()) {
      runner_->Unbind();
    }
    gradient_steps_.Clear();
    steps_.Clear();
  }

 private:
  // A step's variables, in the order of the attributes that name them; `states` are those of the step itself, all
  // others of its gradient block.
  struct Step {
    std::vector<Variable*> states;
    std::vector<Variable*> given_outputs;
    std::vector<Variable*> given_states;
    std::vector<Variable*> made_inputs;
    std::vector<Variable*> made_states;
    std::vector<Variable*> made_parameters;
  };

  Step FindStep(const Scope& forward, const Scope& gradient) const {
    return {forward.GetVars(List("states")),        gradient.GetVars(List("given_outputs")),
            gradient.GetVars(List("given_states")), gradient.GetVars(List("made_inputs")),
            gradient.GetVars(List("made_states")),  gradient.GetVars(List("made_parameters"))};
  }

  const std::vector<std::string>& List(const char* attr) const { return Attr<std::vector<std::string>>(attr); }

  void RunImpl(const Scope& scope, const Place& place) override {
    HR_ENFORCE(runner_.has_value(), FailedPrecondition, "the operator has not been prepared with its program");
    const ExecutionContext& ctx = Bind(scope);
    const auto& kept = ctx.InputAs<StepScopes>("step_scopes");
    HR_ENFORCE(kept.block == runner_->block().parent() && kept.size > 0, InvalidArgument, "'", Input("step_scopes"),
               "' holds ", kept.size, " steps of block ", kept.block, ", expected some of block ",
               runner_->block().parent());
    const auto steps = static_cast<int64_t>(kept.size);
    const bool reverse = Attr<bool>("reverse");
    PoolVector<LoDTensor> carried(ctx.OutputSize("initial_states@GRAD"));  // gradients, not initialised: zero
    for (int64_t i = steps; i-- > 0;) {
      ScopedWaitHook::CallIfDue();
      const auto ran = static_cast<size_t>(i);
      const Scope& forward = kept.scopes[ran];
      const Scope& gradient = gradient_steps_.Enter(*runner_, forward, ran);
      const Step& step = steps_.At(gradient, [&] { return FindStep(forward, gradient); });
      Give(ctx, step, reverse ? steps - 1 - i : i, steps, &carried);
      runner_->Run(gradient, place);
      Take(ctx, step, reverse ? steps - 1 - i : i, steps, i == steps - 1, &carried);
      gradient_steps_.Leave(ran);
    }
    for (size_t k = 0; k < carried.size(); ++k) {
      if (LoDTensor* gradient = ctx.OutputOrNull("initial_states@GRAD", k)) {
        *gradient = std::move(carried[k]);
      }
    }
  }

  // The gradients of what the step has left: to its outputs and to the next step. One variable may be both.
  static void Give(const ExecutionContext& ctx, const Step& step, int64_t t, int64_t steps,
                   PoolVector<LoDTensor>* carried) {
    for (Variable* state : step.given_states) {  // a run that has failed may have left something
      state->GetMutable<LoDTensor>()->SetMemory(nullptr);
    }
    for (size_t k = 0; k < step.given_outputs.size(); ++k) {
      const LoDTensor& gradient = ctx.Input("outputs@GRAD", k);
      HR_ENFORCE(!gradient.dims().empty() && gradient.dims()[0] == steps, InvalidArgument, "'",
                 ctx.InputVar("outputs@GRAD", k)->name(), "': expected dims [", steps, ", ...], got ",
                 ToString(gradient.dims()));
      *step.given_outputs[k]->GetMutable<LoDTensor>() = StepOf(gradient, t);
    }
    for (size_t k = 0; k < step.given_states.size(); ++k) {
      LoDTensor& gradient = (*carried)[k];
      if (!gradient.initialized()) {
        SetZerosLike(step.states[k]->Get<LoDTensor>(), &gradient);
      }
      auto* given = step.given_states[k]->GetMutable<LoDTensor>();
      if (!given->initialized()) {
        *given = std::move(gradient);
      } else {
        given->CopyFrom(*given);
        AddTensor(gradient, given);
      }
      gradient = LoDTensor();
    }
  }

  static void Take(const ExecutionContext& ctx, const Step& step, int64_t t, int64_t steps, bool is_last,
                   PoolVector<LoDTensor>* carried) {
    for (size_t k = 0; k < step.made_inputs.size(); ++k) {
      LoDTensor* sequence = ctx.Output("inputs@GRAD", k);
      PutStep(ctx.OutputVar("inputs@GRAD", k)->name(), step.made_inputs[k]->Get<LoDTensor>(), t, is_last ? t : -1,
              steps, sequence);
    }
    for (size_t k = 0; k < step.made_states.size(); ++k) {
      (*carried)[k] = step.made_states[k]->Get<LoDTensor>();
    }
    for (size_t k = 0; k < step.made_parameters.size(); ++k) {
      const Variable& made = *step.made_parameters[k];
      if (made.IsType<SelectedRows>()) {
        SelectedRows* sum = ctx.OutputRows("parameters@GRAD", k);
        if (is_last) {
          *sum = SelectedRows();
        }
        AppendRows(made.Get<SelectedRows>(), sum);
      } else if (LoDTensor* sum = ctx.Output("parameters@GRAD", k); is_last) {
        *sum = LoDTensor();
        sum->CopyFrom(made.Get<LoDTensor>());
      } else {
        AddTensor(made.Get<LoDTensor>(), sum);
      }
    }
  }

  std::optional<BlockRunner> runner_;
  GradientStepScopes gradient_steps_;
  ScopeBindings<Step> steps_;  // by the scope of the gradient block
};

// Which gradients a step is given and makes, by what the operator's slots and attributes say of the variables of the
// block. What a step finds in ex_states depends on parameters if what it leaves in states does, and a step is given the
// gradient of a state if a step makes that of the ex_state: both are found by planning until nothing is added.
StepsGradient GradientOfSteps(const OpDesc& op, DifferentiatedSteps& steps) {
  using Names = std::set<std::string>;
  HR_ENFORCE(op.Attr<bool>("is_train"), InvalidArgument,
             "operator 'recurrent' is on the way from the parameters to the loss, but does not have is_train and so "
             "keeps nothing to compute a gradient from");
  const Names inputs(op.Input("inputs").begin(), op.Input("inputs").end());
  const Names outputs(op.Output("outputs").begin(), op.Output("outputs").end());
  const auto& initial = op.Input("initial_states");
  const auto& ex_states = op.Attr<std::vector<std::string>>("ex_states");
  const auto& states = op.Attr<std::vector<std::string>>("states");
  HR_ENFORCE(ex_states.size() == states.size() && ex_states.size() == initial.size(), InvalidArgument,
             "operator 'recurrent': ex_states, states and initial_states belong together, but there are ",
             ex_states.size(), ", ", states.size(), " and ", initial.size());
  Names own;
  std::copy_if(inputs.begin(), inputs.end(), std::inserter(own, own.end()),
               [&](const auto& name) { return steps.IsInfluenced(name); });
  for (size_t i = 0; i < initial.size(); ++i) {
    if (steps.IsInfluenced(initial[i])) {
      own.insert(ex_states[i]);
    }
  }
  Names given;
  std::copy_if(outputs.begin(), outputs.end(), std::inserter(given, given.end()),
               [&](const auto& name) { return steps.HasGradient(name); });
  size_t before = 0;
  do {
    before = own.size() + given.size();
    steps.Plan(own, given);
    for (size_t i = 0; i < states.size(); ++i) {
      if (steps.IsInfluencedWithin(states[i])) {
        own.insert(ex_states[i]);
      }
      if (steps.IsInfluencedWithin(ex_states[i]) && steps.Makes(ex_states[i])) {
        given.insert(states[i]);
      }
    }
  } while (own.size() + given.size() != before);
  StepsGradient gradient;
  gradient.scopes = "step_scopes";
  gradient.op.type = "recurrent_grad";
  gradient.op.attrs["reverse"] = op.Attr<bool>("reverse");
  const auto make = [&](const std::string& attr, const std::string& slot, const std::string& within,
                        const std::string& outside) {
    StepsGradient::Made& made = gradient.made[attr];
    made.slot = slot;
    made.names.push_back(within);
    gradient.op.outputs[slot].push_back(outside);
  };
  for (const std::string& name : inputs) {
    if (steps.IsInfluenced(name) && steps.Makes(name)) {
      make("made_inputs", "inputs@GRAD", name, name);
    }
  }
  std::vector<std::string> carried;
  for (size_t i = 0; i < states.size(); ++i) {
    if (steps.IsInfluencedWithin(ex_states[i]) && steps.Makes(ex_states[i])) {
      carried.push_back(states[i]);
      make("made_states", "initial_states@GRAD", ex_states[i],
           steps.IsInfluenced(initial[i]) ? initial[i] : std::string(kEmptyVarName));
    }
  }
  gradient.given["given_states"] = carried;
  gradient.op.attrs["states"] = std::move(carried);
  for (const std::string& name : outputs) {
    if (steps.HasGradient(name)) {
      gradient.given["given_outputs"].push_back(name);
      gradient.op.inputs["outputs@GRAD"].push_back(name);
    }
  }
  for (const std::string& name : steps.MadeOutside()) {
    make("made_parameters", "parameters@GRAD", name, name);
  }
  return gradient;
}

OpRegistrar&& NamesAttr(OpRegistrar&& op, const char* name, const char* comment) {
  return std::move(op).Attr<std::vector<std::string>>(name, comment, {});
}

}  // namespace

HEADRACE_REGISTER_OP(recurrent)
    .Comment(
        "Runs a block for each step of sequences. The block has variables of its own with the names of the inputs, "
        "which it finds, and of the outputs, which it writes, without the first dimension.")
    .Input("inputs", "sequences, [steps, ...] each", kDuplicable)
    .Input("initial_states", "values of ex_states for the first step", kDuplicable | kDispensable)
    .Input("parameters", "other variables that the block reads", kDuplicable | kDispensable)
    .Output("outputs", "sequences, [steps, ...] each", kDuplicable)
    .Output("step_scopes", "the block's own variables in each step, for the gradient; a variable of this block",
            kDispensable)
    .Attr<BlockRef>("sub_block", "the block that is run")
    .With(NamesAttr, "ex_states", "variables of the block that hold the values of states from the previous step")
    .With(NamesAttr, "states", "variables of the block that are passed to the next step")
    .With(NamesAttr, "skip_eager_deletion_vars", "Fluid's; makes no difference")
    .Attr<bool>("has_states", "Fluid's; makes no difference", false)
    .Attr<bool>("reverse", "whether the last step of the sequences comes first", false)
    .Attr<bool>("is_train", "whether the steps are kept for the gradient", true)
    .Operator<RecurrentOp>()
    .GradientBySteps(GradientOfSteps);

HEADRACE_REGISTER_OP(recurrent_grad)
    .Comment("Gradient of recurrent: runs the gradient block of each step, in the opposite order.")
    .Input("outputs@GRAD", "gradients of outputs, in the order of given_outputs", kDuplicable | kDispensable)
    .Input("step_scopes", "the steps' variables")
    .Output("inputs@GRAD", "gradients of inputs, in the order of made_inputs", kDuplicable | kDispensable)
    .Output("initial_states@GRAD", "gradients of the values for the first step, in the order of states",
            kDuplicable | kDispensable)
    .Output("parameters@GRAD", "gradients of what all steps read, in the order of made_parameters",
            kDuplicable | kDispensable)
    .Attr<BlockRef>("sub_block", "the block that computes the gradients of a step")
    .With(NamesAttr, "states", "the states that have a gradient, by their names in the step")
    .With(NamesAttr, "given_outputs", "the block's names of the gradients of what a step adds to outputs")
    .With(NamesAttr, "given_states", "those of its results in states")
    .With(NamesAttr, "made_states", "those of its values of ex_states")
    .With(NamesAttr, "made_inputs", "those of its part of inputs")
    .With(NamesAttr, "made_parameters", "those of the other variables that it reads")
    .Attr<bool>("reverse", "as in the operator", false)
    .Operator<RecurrentGradOp>();

}  // namespace headrace::ops
