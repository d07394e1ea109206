// The registry of operators: what each declares, how its shapes are inferred, how it runs, what its gradient is.
//
//   HEADRACE_REGISTER_OP(relu)
//       .Comment("max(x, 0), element by element.")
//       .Input("X", "any shape")
//       .Output("Out", "shape and dtype of X")
//       .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
//       .Kernel<float>(ReluKernel<float>)
//       .Kernel<double>(ReluKernel<double>)
//       .Gradient(DefaultGradient({.outputs = {"Out"}}));
//
// Thread-safety: registration happens while libraries are loaded, under a lock; look-ups may come from any thread. An
// OpInfo, once registered, stays where it is and is never changed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/attribute.h"
#include "framework/data_type.h"
#include "framework/export.h"
#include "framework/operator.h"
#include "framework/program_desc.h"

// What a library of operators and libheadrace.so must agree on: the layout of the types in these headers. Each release
// that changes one of them raises the number. HEADRACE_REGISTER_OP refers to a function of that name, so that a library
// built with other headers is refused by the dynamic linker, before any of its code runs.
#define HEADRACE_OP_LIBRARY_ABI headrace_op_library_abi_1
extern "C" HEADRACE_API void HEADRACE_OP_LIBRARY_ABI();

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
// Makes of an operator of version `from`, an older one, what computes the same today: changes its slots and attributes,
// which nothing has checked yet. May throw, best Unimplemented with what to do instead.
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
// operators/block_grad_ops.cc.
struct BlockGradient {
  std::string reads;   // input slot: variables outside of the block that it reads
  std::string writes;  // output slot: those that it writes
  std::string scopes;  // output slot of the StepScopes
};

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
  GradientMaker array_gradient;  // in place of `gradient`, if an output is an array
  bool reads_data = false;       // takes the next batch from a reader: the executor runs it before what changes state

  const SlotInfo* FindInput(std::string_view slot) const;
  const SlotInfo* FindOutput(std::string_view slot) const;
  const AttrInfo* FindAttr(std::string_view name) const;
  bool MayBeInPlace(std::string_view output, std::string_view input) const;
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

class HEADRACE_API OpRegistry {
 public:
  // Throws AlreadyExists if the type is taken, InvalidArgument if the declaration contradicts itself. While
  // LoadOpLibrary opens a library on this thread, it only notes the operator down, and LoadOpLibrary throws instead.
  static void Register(OpInfo info);
  // nullptr if unknown.
  static const OpInfo* Find(std::string_view type);
  // Throws NotFound naming the type and close matches.
  static const OpInfo& Get(std::string_view type);
  // Sorted.
  static std::vector<std::string> Types();

  // Checks slots and attributes against the declaration and fills in the defaults. Attributes that Fluid writes and
  // that are not declared are left out where their values change nothing (use_cudnn, …). An output may name the
  // variable of an input only where the declaration says so, and that of another output never. Throws InvalidArgument,
  // NotFound, TypeMismatch or, for such an attribute with another value, Unimplemented, with the operator's type.
  static void Check(OpDesc& op);

  // Adds a kernel to a registered operator, which stays as it is otherwise: a gradient operator gets one of its own.
  // Throws NotFound if there is no such operator, AlreadyExists if it has a kernel for the type, InvalidArgument if it
  // has no kernels at all or `kernel` is empty. While LoadOpLibrary opens a library, as Register.
  static void RegisterKernel(std::string_view type, DataType dtype, KernelFn kernel);
  // The kernel of a registered operator, its own or added; nullptr if there is none. It stays where it is.
  static const KernelFn* FindKernel(const OpInfo& info, DataType dtype);
  // As FindKernel. Throws Unimplemented, with the types that there are kernels for, rather than give nullptr.
  static const KernelFn& GetKernel(const OpInfo& info, DataType dtype);
  // The types that it has kernels for, sorted.
  static std::vector<DataType> KernelTypes(const OpInfo& info);

  // The runnable form of a checked OpDesc.
  static std::unique_ptr<OperatorBase> Create(const OpDesc& op);
};

// Builds an OpInfo, which Register hands over to the registry.
class HEADRACE_API OpRegistrar {
 public:
  explicit OpRegistrar(std::string type) { info_.type = std::move(type); }
  OpRegistrar(OpRegistrar&&) = default;
  OpRegistrar(const OpRegistrar&) = delete;
  OpRegistrar& operator=(const OpRegistrar&) = delete;
  OpRegistrar& operator=(OpRegistrar&&) = delete;
  ~OpRegistrar() = default;

  // Throws as OpRegistry::Register does.
  void Register() &&;

  OpRegistrar&& Comment(std::string text) &&;
  // See OpInfo::version. Programs say which versions they were made with. An operator that is newer than this one is
  // refused, one that is older upgraded, when a program is parsed.
  OpRegistrar&& Version(int32_t version, OpUpgrade upgrade) &&;
  OpRegistrar&& Input(std::string slot, std::string comment, unsigned flags = kPlain) &&;
  OpRegistrar&& Output(std::string slot, std::string comment, unsigned flags = kPlain) &&;
  // A required attribute of type T.
  template <typename T>
  OpRegistrar&& Attr(std::string name, std::string comment) && {
    return std::move(*this).AddAttr({std::move(name), std::move(comment), Attribute(T{}), std::nullopt, {}});
  }
  // An attribute with a default and, perhaps, a check, which throws.
  template <typename T>
  OpRegistrar&& Attr(std::string name, std::string comment, T default_value,
                     std::function<void(const T&)> check = {}) && {
    AttrInfo attr{std::move(name), std::move(comment), Attribute(T{}), Attribute(std::move(default_value)), {}};
    if (check) {
      attr.check = [check = std::move(check)](const Attribute& value) { check(std::get<T>(value)); };
    }
    return std::move(*this).AddAttr(std::move(attr));
  }
  // Applies a function that makes several declarations: the attributes that an operator and its gradient share, say.
  // `args` follow the registrar.
  template <typename Declare, typename... Args>
  OpRegistrar&& With(Declare&& declare, Args&&... args) && {
    return std::forward<Declare>(declare)(std::move(*this), std::forward<Args>(args)...);
  }
  // The variable in output slot `output` may be one of those in input slot `input`, unless another input slot holds it
  // too. All other overlaps of outputs with inputs are refused. Also where they are two variables, a run may give the
  // output the memory of an input that nothing reads any more.
  OpRegistrar&& InPlace(std::string output, std::string input) &&;
  OpRegistrar&& InferShape(InferShapeFn fn) &&;
  // A kernel for inputs of type T. The first input's dtype selects it, unless KernelTypeFrom says otherwise.
  template <typename T>
  OpRegistrar&& Kernel(KernelFn fn) && {
    return std::move(*this).AddKernel(DataTypeOf<T>::value, std::move(fn));
  }
  OpRegistrar&& KernelTypeFrom(std::string slot) &&;
  OpRegistrar&& KernelTypeFromAttr(std::string attr) &&;
  // The operator is an OperatorBase of its own, which may run kernels that it has as well (KernelOperator).
  template <typename Op>
  OpRegistrar&& Operator() && {
    info_.factory = [](OpDesc desc) -> std::unique_ptr<OperatorBase> { return std::make_unique<Op>(std::move(desc)); };
    return std::move(*this);
  }
  OpRegistrar&& Gradient(GradientMaker maker) &&;
  // The gradient where an output is an array, of an operator whose outputs may be tensors or arrays. Gradients of
  // arrays are changed in place; see framework/backward.cc.
  OpRegistrar&& ArrayGradient(GradientMaker maker) &&;
  // See headrace::BlockGradient.
  OpRegistrar&& GradientByBlock(BlockGradient slots) &&;
  // See OpInfo::reads_data.
  OpRegistrar&& ReadsData() &&;

 private:
  OpRegistrar&& AddAttr(AttrInfo attr) &&;
  OpRegistrar&& AddKernel(DataType type, KernelFn fn) &&;

  OpInfo info_;
};

// What HEADRACE_REGISTER_OP defines: it registers what the declaration that it is initialised with has gathered.
struct OpRegistration {
  OpRegistration(OpRegistrar&& declaration) {  // NOLINT(google-explicit-constructor): see the macro
    HEADRACE_OP_LIBRARY_ABI();
    std::move(declaration).Register();
  }
};

// At namespace scope of a source file. `type` is an identifier.
#define HEADRACE_REGISTER_OP(type) \
  [[maybe_unused]] static const ::headrace::OpRegistration headrace_registration_##type = ::headrace::OpRegistrar(#type)

struct OpFamilyRegistration {
  explicit OpFamilyRegistration(void (*register_all)()) {
    HEADRACE_OP_LIBRARY_ABI();
    register_all();
  }
};

// At namespace scope of a source file: what follows is the body of a function that registers operators, each with
// OpRegistrar::Register. For a family of them that one function declares. `family` is an identifier.
//
//   HEADRACE_REGISTER_OPS(pools) {
//     RegisterPool("pool2d", 2);
//     RegisterPool("pool3d", 3);
//   }
#define HEADRACE_REGISTER_OPS(family)                                                      \
  static void headrace_register_##family();                                                \
  [[maybe_unused]] static const ::headrace::OpFamilyRegistration headrace_family_##family( \
      &headrace_register_##family);                                                        \
  static void headrace_register_##family()

struct KernelRegistration {
  KernelRegistration(const char* type, DataType dtype, KernelFn kernel) {
    HEADRACE_OP_LIBRARY_ABI();
    OpRegistry::RegisterKernel(type, dtype, std::move(kernel));
  }
};

// At namespace scope of a source file: a kernel for inputs of type T of an operator that is registered elsewhere, by
// headrace or by a library that was loaded before. `type` and T are identifiers, the last argument is a KernelFn:
//
//   HEADRACE_REGISTER_KERNEL(relu, int32_t, ReluOfIntegers);
#define HEADRACE_REGISTER_KERNEL(type, T, ...)                                                            \
  [[maybe_unused]] static const ::headrace::KernelRegistration headrace_kernel_registration_##type##_##T( \
      #type, ::headrace::DataTypeOf<T>::value, __VA_ARGS__)

}  // namespace headrace
