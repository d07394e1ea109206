// sum: of tensors, of SelectedRows, and of arrays, place by place.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/control_flow/array_gradient.h"
#include "operators/control_flow/on_arrays.h"
#include "operators/math/element_loop.h"
#include "operators/math/row_merge.h"

namespace headrace::ops {
namespace {

// All X are SelectedRows.
template <typename T>
void SumRows(const ExecutionContext& ctx) {
  SelectedRows all;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (ctx.HasInput("X", k)) {
      const SelectedRows& x = ctx.InputRows("X", k);
      all.set_height(x.height());
      all.mutable_rows()->insert(all.mutable_rows()->end(), x.rows().begin(), x.rows().end());
      *all.mutable_value() = x.value();
    }
  }
  LoDTensor values;
  DDim dims = all.value().dims();
  dims[0] = static_cast<int64_t>(all.rows().size());
  T* to = values.Resize(dims).template mutable_data<T>();
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (ctx.HasInput("X", k)) {
      const Tensor& value = ctx.InputRows("X", k).value();
      to = std::copy_n(value.data<T>(), value.numel(), to);
    }
  }
  *all.mutable_value() = std::move(values);
  MergeRows<T>(all, ctx.OutputRows("Out"));
}

// Some X are SelectedRows, in which all rows but theirs are zero.
template <typename T>
void AddSelectedRows(const ExecutionContext& ctx, T* to) {
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (!ctx.IsSelectedRows("X", k)) {
      continue;
    }
    const SelectedRows& x = ctx.InputRows("X", k);
    const int64_t width = RowWidth(x);
    const T* from = x.value().data<T>();
    for (const int64_t row : x.rows()) {
      for (int64_t c = 0; c < width; ++c) {
        T& sum = to[row * width + c];
        sum = static_cast<T>(static_cast<Wrapping<T>>(sum) + static_cast<Wrapping<T>>(*from++));
      }
    }
  }
}

// Adds block by block, so that Out may be any of the X and each element is added in the order of the inputs.
template <typename T>
void SumKernel(const ExecutionContext& ctx) {
  constexpr int64_t kBlock = 1024;
  if (ctx.OutputVar("Out")->IsType<SelectedRows>()) {
    SumRows<T>(ctx);
    return;
  }
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  PoolVector<const T*> from;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (ctx.IsSelectedRows("X", k)) {
      continue;
    }
    if (const LoDTensor* x = ctx.InputOrNull("X", k)) {
      from.push_back(x->data<T>());
    }
  }
  ParallelFor(out->numel(), kElementsPerBlock, [&](int64_t first, int64_t end) {
    for (int64_t begin = first; begin < end; begin += kBlock) {
      const int64_t n = std::min(kBlock, end - begin);
      Wrapping<T> block[kBlock] = {};
      for (const T* x : from) {
        for (int64_t i = 0; i < n; ++i) {
          block[i] += static_cast<Wrapping<T>>(x[begin + i]);
        }
      }
      std::transform(block, block + n, to + begin, [](auto value) { return static_cast<T>(value); });
    }
  });
  AddSelectedRows(ctx, to);
}

// Elements of arrays may have dims of their own; the run checks them.
void InferSumOfArrays(InferShapeContext& ctx) {
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    const VarDesc* x = ctx.InputDesc("X", k);
    HR_ENFORCE(x == nullptr || IsArray(x), TypeMismatch, "input X: expected arrays only, as there is one, '",
               x == nullptr ? "" : x->name, "' is a ", x == nullptr ? "" : VarKindName(x->kind));
    EnforceType(ctx, "X", ctx.InputType("X"), k);
  }
  VarDesc* out = ctx.OutputDesc("Out");
  if (out != nullptr) {
    out->kind = VarKind::kLoDTensorArray;
    out->tensor = ctx.InputDesc("X")->tensor;
  }
}

void InferSum(InferShapeContext& ctx) {
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (IsArray(ctx.InputDesc("X", k))) {
      InferSumOfArrays(ctx);
      return;
    }
  }
  HR_ENFORCE(!IsArray(ctx.OutputDesc("Out")), TypeMismatch, "output Out: the sum of tensors is none of arrays");
  DDim dims;
  bool found = false;
  bool all_rows = true;
  size_t first = 0;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    if (!ctx.HasInput("X", k)) {
      continue;
    }
    all_rows = all_rows && ctx.InputIsSelectedRows("X", k);
    if (!found) {
      found = true;
      first = k;
      dims = ctx.InputDim("X", k);
      continue;
    }
    EnforceDims(ctx, "X", dims, k);
    EnforceType(ctx, "X", ctx.InputType("X", first), k);
    const DDim other = ctx.InputDim("X", k);
    for (size_t d = 0; d < dims.size(); ++d) {
      dims[d] = std::max(dims[d], other[d]);
    }
  }
  HR_ENFORCE(found, InvalidArgument, "input X: expected at least one variable, got none");
  SetOutput(ctx, "Out", dims, ctx.InputType("X", first));
  ctx.ShareLoD("X", "Out", first);
  if (all_rows) {
    ctx.SetOutputSelectedRows("Out");
  }
}

// Returns whether the elements are of type T.
template <typename T>
bool AddIfOfType(const Tensor& x, Tensor* sum) {
  if (x.dtype() != DataTypeOf<T>::value) {
    return false;
  }
  const T* from = x.data<T>();
  T* to = static_cast<T*>(sum->raw_mutable_data());
  std::transform(from, from + x.numel(), to, to,
                 [](T a, T b) { return static_cast<T>(static_cast<Wrapping<T>>(b) + static_cast<Wrapping<T>>(a)); });
  return true;
}

// Adds `x` to an element of a sum of arrays. Fluid leaves empty elements out.
void AddElement(const std::string& name, size_t place, const LoDTensor& x, LoDTensor* sum) {
  if (!sum->initialized() || sum->numel() == 0) {
    sum->CopyFrom(x);
    sum->set_lod(x.lod());
    return;
  }
  if (x.numel() == 0) {
    return;
  }
  HR_ENFORCE(x.dims() == sum->dims() && x.dtype() == sum->dtype() && x.lod() == sum->lod(), InvalidArgument,
             "input X: element ", place, " of '", name, "' is ", DataTypeName(x.dtype()), " of dims ",
             ToString(x.dims()), ", that of the arrays before ", DataTypeName(sum->dtype()), " of dims ",
             ToString(sum->dims()), x.lod() == sum->lod() ? "" : ", or their LoDs differ");
  const bool added = AddIfOfType<float>(x, sum) || AddIfOfType<double>(x, sum) || AddIfOfType<int32_t>(x, sum) ||
                     AddIfOfType<int64_t>(x, sum);
  HR_ENFORCE(added, Unimplemented,
             "input X: elements of arrays are added as float32, float64, int32 or int64, those of '", name, "' are ",
             DataTypeName(x.dtype()));
}

class SumOp : public ArrayOp {
 public:
  using ArrayOp::ArrayOp;

 private:
  void RunOnArrays(const ExecutionContext& ctx) override {
    LoDTensorArray sum;  // Out may be one of the X
    for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
      if (!ctx.HasInput("X", k)) {
        continue;
      }
      const std::string& name = ctx.InputVar("X", k)->name();
      const auto& x = ctx.InputAs<LoDTensorArray>("X", k);
      sum.resize(std::max(sum.size(), x.size()));
      for (size_t i = 0; i < x.size(); ++i) {
        if (x[i].initialized()) {
          AddElement(name, i, x[i], &sum[i]);
        }
      }
    }
    *ctx.OutputAs<LoDTensorArray>("Out") = std::move(sum);
  }
};

template <typename T>
LoDTensor TimesOf(const LoDTensor& x, int32_t factor) {
  const T* from = x.data<T>();
  LoDTensor product;
  T* to = product.Resize(x.dims()).template mutable_data<T>();
  std::transform(from, from + x.numel(), to, [factor](T value) { return value * static_cast<T>(factor); });
  return product;
}

// float32 or float64.
LoDTensor Times(const LoDTensor& x, int32_t factor) {
  if (factor == 1) {
    return x;
  }
  return x.dtype() == DataType::kFloat32 ? TimesOf<float>(x, factor) : TimesOf<double>(x, factor);
}

// Adds the gradients of the sum's elements to those of the arrays.
class SumArrayGradOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const size_t arrays = ctx.OutputSize("X@GRAD");
    const auto& times = Attr<std::vector<int32_t>>("times");
    HR_ENFORCE(times.size() == arrays, InvalidArgument, "attribute times: expected ", arrays,
               " numbers, one for each variable in output X@GRAD, got ", times.size());
    const auto stays = Attr<int32_t>("stays");
    auto& gradient = *ctx.OutputAs<LoDTensorArray>("Out@GRAD");
    for (size_t i = 0; i < gradient.size(); ++i) {
      if (!gradient[i].initialized()) {
        continue;
      }
      for (size_t k = 0; k < arrays; ++k) {
        if (ctx.HasOutput("X@GRAD", k)) {
          AddToPlace(Times(gradient[i], times[k]), i, ctx.OutputAs<LoDTensorArray>("X@GRAD", k));
        }
      }
      if (stays != 0) {
        gradient[i] = Times(gradient[i], stays);
      }
    }
    if (stays == 0) {
      gradient.clear();
    }
  }
};

std::vector<OpDesc> SumGradient(const OpDesc& op) {
  std::vector<OpDesc> grads;
  for (const std::string& x : op.Input("X")) {
    if (x != kEmptyVarName) {
      grads.push_back({"assign", {{"X", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {GradVarName(x)}}}, {}});
    }
  }
  return grads;
}

// Out has been overwritten as a whole, so nothing before depends on it any more, unless it is one of the X.
std::vector<OpDesc> SumArrayGradient(const OpDesc& op) {
  const std::string& out = op.Output("Out").front();
  std::vector<std::string> names;
  std::vector<int32_t> times;
  int32_t stays = 0;
  for (const std::string& x : op.Input("X")) {
    const auto found = std::find(names.begin(), names.end(), GradVarName(x));
    if (x == out) {
      ++stays;
    } else if (found != names.end()) {
      ++times[static_cast<size_t>(found - names.begin())];
    } else if (x != kEmptyVarName) {
      names.push_back(GradVarName(x));
      times.push_back(1);
    }
  }
  OpDesc gradient;
  gradient.type = "sum_grad";
  gradient.inputs = {{"Out@GRAD", {GradVarName(out)}}};
  gradient.outputs = {{"Out@GRAD", {GradVarName(out)}}};
  if (!names.empty()) {
    gradient.inputs["X@GRAD"] = names;
    gradient.outputs["X@GRAD"] = names;
  }
  gradient.attrs = {{"times", times}, {"stays", stays}};
  return {gradient};
}

}  // namespace

HEADRACE_REGISTER_OP(sum)
    .Comment(
        "The sum of tensors, element by element, in the order of the slot; SelectedRows come last. Or of arrays, place "
        "by place: one that an array lacks, or that is empty there, is left out. Out may be one of them.")
    .Input("X", "tensors or SelectedRows of the same dims and dtype, or arrays", kDuplicable | kSelectedRows)
    .Output("Out",
            "dims and dtype of X, LoD of the first X; SelectedRows, each once, if all X are; an array as long as the "
            "longest X",
            kSelectedRows)
    .InPlace("Out", "X")
    .InferShape(InferSum)
    .Kernel<float>(SumKernel<float>)
    .Kernel<double>(SumKernel<double>)
    .Kernel<int32_t>(SumKernel<int32_t>)
    .Kernel<int64_t>(SumKernel<int64_t>)
    .Operator<SumOp>()
    .Gradient(SumGradient)
    .ArrayGradient(SumArrayGradient);

HEADRACE_REGISTER_OP(sum_grad)
    .Comment("Gradient of sum, of arrays: adds to the gradients of the arrays' elements.")
    .Input("Out@GRAD", "gradients of the elements of Out")
    .Input("X@GRAD", "gradients of the elements of the arrays, so far", kDuplicable | kDispensable)
    .Output("X@GRAD", "the same arrays", kDuplicable | kDispensable)
    .Output("Out@GRAD", "empty, unless Out was one of the arrays")
    .InPlace("X@GRAD", "X@GRAD")
    .InPlace("Out@GRAD", "Out@GRAD")
    .Attr<std::vector<int32_t>>("times", "how often each of the arrays was added")
    .Attr<int32_t>("stays", "how often Out was one of them", 0)
    .Operator<SumArrayGradOp>();

}  // namespace headrace::ops
