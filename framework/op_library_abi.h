// The ABI that a library of operators and the libheadrace.so that loads it must agree on: where each member lies of the
// types that the code of both deals with, and the standard library. HEADRACE_REGISTER_OP refers to a function whose
// name holds a hash of all that. The compiler of each side computes it from the types as that side has them; so the
// dynamic linker refuses a library that does not fit, before any of its code runs.
//
// Whoever adds a member to one of the types, or takes one away, has to say so here: else this file does not compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <variant>
#include <vector>

#include "framework/block_desc.h"
#include "framework/errors.h"
#include "framework/export.h"
#include "framework/function_ref.h"
#include "framework/op_info.h"
#include "framework/operator.h"
#include "framework/program_desc.h"
#include "framework/thread_pool.h"

namespace headrace {

// The C++ standard library and its ABI: kLibcxx + _LIBCPP_ABI_VERSION, or 1 + _GLIBCXX_USE_CXX11_ABI.
inline constexpr uint64_t kLibcxx = 100;
#ifdef _LIBCPP_ABI_VERSION
inline constexpr uint64_t kStandardLibrary = kLibcxx + _LIBCPP_ABI_VERSION;
#else
inline constexpr uint64_t kStandardLibrary = 1 + _GLIBCXX_USE_CXX11_ABI;
#endif

// A number that depends on those that have been added to it, and on their order.
class LayoutHash {
 public:
  constexpr LayoutHash& Add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      value_ = (value_ ^ ((number >> shift) & 0xff)) * 0x00000100000001b3;  // FNV-1a, 64 bits
    }
    return *this;
  }
  constexpr uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// HEADRACE_ADD_LAYOUT(hash, Type, members...): where they lie, all and in their order. The structured binding does not
// compile unless there are as many of them.
#define HEADRACE_ADD_LAYOUT(hash, Type, ...)                                           \
  (void)[](const Type& value) { [[maybe_unused]] const auto& [__VA_ARGS__] = value; }; \
  hash.Add(sizeof(Type)).Add(alignof(Type)) HEADRACE_SCAN3(HEADRACE_ADD(Type, __VA_ARGS__))
#define HEADRACE_ADD(Type, member, ...) \
  .Add(offsetof(Type, member))          \
      .Add(sizeof(Type::member)) __VA_OPT__(HEADRACE_ADD_MORE HEADRACE_NO_ARGUMENTS(Type, __VA_ARGS__))
#define HEADRACE_ADD_MORE() HEADRACE_ADD
#define HEADRACE_NO_ARGUMENTS ()
// The preprocessor expands HEADRACE_ADD once for each scan: 64 members at most.
#define HEADRACE_SCAN1(...) HEADRACE_SCAN0(HEADRACE_SCAN0(HEADRACE_SCAN0(HEADRACE_SCAN0(__VA_ARGS__))))
#define HEADRACE_SCAN2(...) HEADRACE_SCAN1(HEADRACE_SCAN1(HEADRACE_SCAN1(HEADRACE_SCAN1(__VA_ARGS__))))
#define HEADRACE_SCAN3(...) HEADRACE_SCAN2(HEADRACE_SCAN2(HEADRACE_SCAN2(HEADRACE_SCAN2(__VA_ARGS__))))
#define HEADRACE_SCAN0(...) __VA_ARGS__

// All compilers that there is a C++20 for give offsets in types that are not of standard layout.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

// The objects themselves are counted, not their contents.
// NOLINTBEGIN(bugprone-sizeof-container,bugprone-sizeof-expression)
template <typename Variant>
struct AlternativeSizes;
template <typename... Alternatives>
struct AlternativeSizes<std::variant<Alternatives...>> {
  static constexpr size_t kSizes[] = {sizeof(Alternatives)...};
};

// A friend of the types: it sees their private members.
struct AbiLayout {
  static constexpr uint64_t OfAll() {
    LayoutHash hash;
    HEADRACE_ADD_LAYOUT(hash, Allocation, data_, size_, deleter_, whole_, on_heap_);
    HEADRACE_ADD_LAYOUT(hash, AttrInfo, name, comment, like, default_value, check);
    HEADRACE_ADD_LAYOUT(hash, AttributeIndex, op_, entries_);
    HEADRACE_ADD_LAYOUT(hash, AttributeIndex::Entry, name, attr, text);
    HEADRACE_ADD_LAYOUT(hash, BlockDesc, program_, index_, parent_, vars_, vars_by_name_, ops_);
    HEADRACE_ADD_LAYOUT(hash, BlockGradient, reads, writes, scopes, runs_at_most_once);
    HEADRACE_ADD_LAYOUT(hash, BlockRef, index);
    HEADRACE_ADD_LAYOUT(hash, DDim, data_, size_, capacity_, inline_);
    HEADRACE_ADD_LAYOUT(hash, Error::Details, message, op_type, operands, variable, sample_index, what);
    HEADRACE_ADD_LAYOUT(hash, ExecutionContext, op_, attrs_, inputs_, outputs_);
    HEADRACE_ADD_LAYOUT(hash, ExecutionContext::Slot, name, variables);
    HEADRACE_ADD_LAYOUT(hash, GradientUses, inputs, outputs, no_gradient);
    HEADRACE_ADD_LAYOUT(hash, HashedName, text_, size_, hash_);
    HEADRACE_ADD_LAYOUT(hash, InPlacePair, output, input);
    HEADRACE_ADD_LAYOUT(hash, OpDesc, type, inputs, outputs, attrs);
    HEADRACE_ADD_LAYOUT(hash, OpInfo, type, version, upgrade, comment, inputs, outputs, attrs, in_place, infer_shape,
                        kernels, kernel_type_slot, kernel_type_attr, factory, gradient, block_gradient, steps_gradient,
                        array_gradient, reads_data);
    HEADRACE_ADD_LAYOUT(hash, OperatorBase, desc_, attrs_, bindings_);
    HEADRACE_ADD_LAYOUT(hash, ProgramDesc, blocks_, revision_);
    HEADRACE_ADD_LAYOUT(hash, Scope, parent_, id_, revision_, mutex_, vars_, kids_);
    HEADRACE_ADD_LAYOUT(hash, ScopeBindings<ExecutionContext>, entries_, expected_);
    HEADRACE_ADD_LAYOUT(hash, ScopeBindings<ExecutionContext>::Entry, scope_id, scope_revision, binding);
    HEADRACE_ADD_LAYOUT(hash, SelectedRows, rows_, height_, value_);
    HEADRACE_ADD_LAYOUT(hash, SlotInfo, name, comment, duplicable, dispensable, selected_rows, shape_only);
    HEADRACE_ADD_LAYOUT(hash, StepsGradient, op, scopes, given, made);
    HEADRACE_ADD_LAYOUT(hash, StepsGradient::Made, slot, names);
    HEADRACE_ADD_LAYOUT(hash, Tensor, allocation_, dtype_, dims_, numel_, offset_);
    HEADRACE_ADD_LAYOUT(hash, TensorSpec, dims, dtype, lod_level);
    HEADRACE_ADD_LAYOUT(hash, ThreadPool::Block, function_, call_);
    HEADRACE_ADD_LAYOUT(hash, VarDesc, name, kind, tensor, reader, persistable, stop_gradient, is_parameter, attrs);
    HEADRACE_ADD_LAYOUT(hash, Variable, name_, holder_);
    // The data of derived classes.
    hash.Add(sizeof(Error)).Add(offsetof(Error, details_));
    hash.Add(sizeof(LoDTensor)).Add(offsetof(LoDTensor, lod_));
    hash.Add(sizeof(Attribute));
    for (size_t size : AlternativeSizes<Attribute>::kSizes) {
      hash.Add(size);
    }
    return hash.value();
  }
};
// NOLINTEND(bugprone-sizeof-container,bugprone-sizeof-expression)

#pragma GCC diagnostic pop
#undef HEADRACE_ADD_LAYOUT
#undef HEADRACE_ADD
#undef HEADRACE_ADD_MORE
#undef HEADRACE_NO_ARGUMENTS
#undef HEADRACE_SCAN0
#undef HEADRACE_SCAN1
#undef HEADRACE_SCAN2
#undef HEADRACE_SCAN3

inline constexpr uint64_t kOpLibraryLayout = AbiLayout::OfAll();

// libheadrace.so defines one of them: that for its own layout and standard library.
template <uint64_t layout, uint64_t standard_library>
HEADRACE_API void OpLibraryAbi();

}  // namespace headrace
