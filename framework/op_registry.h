// The registry of operators: the declaration of each, shape inference, how it runs, and its gradient.
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
#include "framework/op_info.h"
#include "framework/op_library_abi.h"
#include "framework/operator.h"
#include "framework/program_desc.h"

namespace headrace {

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

  // Whether an operator has an attribute of that name, or takes one of Fluid's, or has one that is spelt almost so.
  // Throws as Get.
  static bool HasAttrLike(std::string_view type, const std::string& name);

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
  // The operator is an OperatorBase of its own.
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
  // See headrace::StepsGradient.
  OpRegistrar&& GradientBySteps(StepsGradientMaker maker) &&;
  // See OpInfo::reads_data.
  OpRegistrar&& ReadsData() &&;

 private:
  OpRegistrar&& AddAttr(AttrInfo attr) &&;
  OpRegistrar&& AddKernel(DataType type, KernelFn fn) &&;

  OpInfo info_;
};

// The object that HEADRACE_REGISTER_OP defines: it registers the declaration that it is initialised with.
struct OpRegistration {
  OpRegistration(OpRegistrar&& declaration) {  // NOLINT(google-explicit-constructor): see the macro
    OpLibraryAbi<kOpLibraryLayout, kStandardLibrary>();
    std::move(declaration).Register();
  }
};

// At namespace scope of a source file. `type` is an identifier.
#define HEADRACE_REGISTER_OP(type) \
  [[maybe_unused]] static const ::headrace::OpRegistration headrace_registration_##type = ::headrace::OpRegistrar(#type)

struct OpFamilyRegistration {
  explicit OpFamilyRegistration(void (*register_all)()) {
    OpLibraryAbi<kOpLibraryLayout, kStandardLibrary>();
    register_all();
  }
};

// At namespace scope of a source file: the following block is the body of a function that registers operators, each
// with OpRegistrar::Register. For a family of them that one function declares. `family` is an identifier.
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
    OpLibraryAbi<kOpLibraryLayout, kStandardLibrary>();
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
