// The declaration of an operator: its slots and attributes, shape inference, how it runs, and its gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "framework/attribute.h"
#include "framework/data_type.h"
#include "framework/export.h"
#include "framework/op_desc.h"
#include "framework/operator.h"

namespace headrace {

struct SlotInfo {
  std::string name;
  std::string comment;
  bool duplicable = false;     // may hold any number of variables, else exactly one
  bool dispensable = false;    // may be absent
  bool selected_rows = false;  // its variables may hold SelectedRows
  // Only the dims, the dtype and the LoD are read, of a variable that may have lost its elements by then.
  bool shape_only = false;
};

struct AttrInfo {
  std::string name;
  std::string comment;
  Attribute like;                               // an example of the type
  std::optional<Attribute> default_value;       // none: the attribute must be given
  std::function<void(const Attribute&)> check;  // throws InvalidArgument; may be empty
};

// Flags for Input and Output below.
enum SlotFlags : unsigned { kPlain = 0, kDuplicable = 1, kDispensable = 2, kSelectedRows = 4, kShapeOnly = 8 };

using InferShapeFn = std::function<void(InferShapeContext&)>;
using KernelFn = std::function<void(const ExecutionContext&)>;
using OperatorFactory = std::function<std::unique_ptr<OperatorBase>(OpDesc)>;
// The operators that compute the gradients of `op`'s inputs from those of its outputs. Gradient variables are named
// GradVarName(v).
using GradientMaker = std::function<std::vector<OpDesc>(const OpDesc& op)>;
// Rewrites an operator of the older version `from` so that it computes the same today: changes its slots and
// attributes, which are not checked yet. May throw, best Unimplemented with an alternative.
using OpUpgrade = std::function<void(OpDesc* op, int32_t from)>;

// An output that may be the variable of an input: the kernel reads each element of the input before it writes that
// element of the output, or does not mind.
struct InPlacePair {
  std::string output;
  std::string input;
};

// How an operator that runs a block (attribute "sub_block") is differentiated. append_backward makes a block that
// computes the gradients of one step, and appends the operator `<type>_grad` that runs it for each step, last first.
// Its slots: `reads`, `writes`, `scopes` and the gradients of `writes` → the gradients of `reads`. See
// operators/control_flow/control_flow_grad_ops.cc.
struct BlockGradient {
  std::string reads;       // input slot: variables outside of the block that it reads
  std::string writes;      // output slot: those that it writes
  std::string scopes;      // output slot of the StepScopes
  bool runs_at_most_once;  // the block
};

// The steps of an operator that runs a block, for planning their gradient. Implemented in backward_pass.cc.
class DifferentiatedSteps {
 public:
  virtual ~DifferentiatedSteps() = default;
  // Outside of the block, of variables of the operator: whether one depends on a parameter; whether there is a gradient
  // of what it is after the operator.
  virtual bool IsInfluenced(const std::string& name) const = 0;
  virtual bool HasGradient(const std::string& name) const = 0;
  // Plans again how a step computes, from the gradients of its results in `given`, those of its inputs. `own` are
  // variables of the block that depend on a parameter before its first operator. The following are of that plan.
  virtual void Plan(const std::set<std::string>& own, const std::set<std::string>& given) = 0;
  // Whether a variable of the block depends on a parameter, in any step.
  virtual bool IsInfluencedWithin(const std::string& name) const = 0;
  // Whether a step makes the gradient of the variable's value before its first operator.
  virtual bool Makes(const std::string& name) const = 0;
  // The variables of the blocks around this one of which that is true.
  virtual std::set<std::string> MadeOutside() const = 0;
};

// How the gradients of steps become that of their operator. append_backward adds attribute "sub_block", the steps'
// scopes and the attributes of `given` and `made`.
struct StepsGradient {
  // An output slot of the gradient operator: its gradients, in the order of those that a step makes.
  struct Made {
    std::string slot;
    std::vector<std::string> names;  // of variables in the block
  };
  OpDesc op;           // the gradient operator. Where it has a gradient, the variable that this is the gradient of
  std::string scopes;  // output slot of the StepScopes of the operator, and input slot of its gradient
  // By attribute of `op` that tells the gradients' names in the block: the variables whose gradients a step is given.
  std::map<std::string, std::vector<std::string>> given;
  std::map<std::string, Made> made;  // and those whose gradients it makes
};
// Of an operator whose block has its own variables for inputs and outputs, so that BlockGradient does not fit.
using StepsGradientMaker = std::function<StepsGradient(const OpDesc& op, DifferentiatedSteps& steps)>;

struct OpInfo {
  std::string type;
  int32_t version = 0;  // raised by each change after which older programs would compute something else
  OpUpgrade upgrade;    // for those
  std::string comment;
  std::vector<SlotInfo> inputs;
  std::vector<SlotInfo> outputs;
  std::vector<AttrInfo> attrs;
  std::vector<InPlacePair> in_place;
  InferShapeFn infer_shape;
  std::map<DataType, KernelFn> kernels;
  std::string kernel_type_slot;  // the input whose dtype selects the kernel
  std::string kernel_type_attr;  // or the attribute (an int32 DataType) that does
  OperatorFactory factory;       // makes an operator that is not a kernel, or not always
  GradientMaker gradient;        // empty: not differentiable, unless:
  std::optional<BlockGradient> block_gradient;
  StepsGradientMaker steps_gradient;
  GradientMaker array_gradient;  // in place of `gradient`, if an output is an array
  bool reads_data = false;       // takes the next batch from a reader: the executor runs it before others change state

  HEADRACE_API const SlotInfo* FindInput(std::string_view slot) const;
  HEADRACE_API const SlotInfo* FindOutput(std::string_view slot) const;
  HEADRACE_API const AttrInfo* FindAttr(std::string_view name) const;
  HEADRACE_API bool MayBeInPlace(std::string_view output, std::string_view input) const;
};

// Which of the forward variables the gradient operator `<type>_grad` reads. It always gets the gradients of the outputs
// and gives those of the inputs, and has the attributes of the forward operator.
struct GradientUses {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  // Inputs that have no gradient (labels, say).
  std::vector<std::string> no_gradient;
};
HEADRACE_API GradientMaker DefaultGradient(GradientUses uses);

}  // namespace headrace
