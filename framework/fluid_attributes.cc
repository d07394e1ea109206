#include "framework/fluid_attributes.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "framework/errors.h"

namespace headrace {
namespace {

// An attribute of Fluid's operators that an operator may do without: it chooses a library or a device, is for several
// machines, is left by a pass, or has a value that says what is done anyway.
struct NeutralAttr {
  std::set<std::string_view> types;  // the operators; none: all
  std::vector<Attribute> values;     // that change no result; none: all
};
using NeutralAttrs = std::multimap<std::string, NeutralAttr, std::less<>>;

const NeutralAttrs& FluidAttrs() {
  using namespace std::string_literals;
  const std::set<std::string_view> compare = {"equal",      "greater_equal", "greater_than",
                                              "less_equal", "less_than",     "not_equal"};
  const std::set<std::string_view> fill = {"fill", "fill_constant", "fill_constant_batch_size_like"};
  const std::set<std::string_view> interpolate = {"bilinear_interp", "nearest_interp"};
  const std::set<std::string_view> conv = {"conv2d",           "conv2d_transpose",           "conv3d",
                                           "conv3d_transpose", "depthwise_conv2d_transpose", "depthwise_conv2d"};
  const std::set<std::string_view> tables = {"hierarchical_sigmoid", "lookup_table", "lookup_table_v2", "nce"};
  const std::set<std::string_view> blocks = {"conditional_block", "recurrent", "while"};
  static const auto* attrs = new NeutralAttrs{{"Scale_in", {}},
                                              {"Scale_in_eltwise", {}},
                                              {"Scale_out", {}},
                                              {"Scale_weights", {}},
                                              {"Scale_x", {}},
                                              {"Scale_y", {}},
                                              {"data_format", {{}, {"AnyLayout"s, "NCHW"s}}},
                                              {"epmap", {tables, {std::vector<std::string>{}}}},
                                              {"exhaustive_search", {}},
                                              {"fix_seed", {}},
                                              {"force_cpu", {compare, {}}},
                                              {"force_cpu", {fill, {}}},
                                              {"force_fp32_output", {{}, {false}}},
                                              {"fuse_activation", {conv, {""s}}},
                                              {"fuse_alpha", {conv, {}}},  // of fuse_activation
                                              {"fuse_beta", {conv, {}}},
                                              {"fuse_brelu", {{}, {false}}},
                                              {"fuse_brelu_threshold", {conv, {}}},
                                              {"fuse_relu", {{}, {false}}},
                                              {"fuse_relu_before_depthwise_conv", {{}, {false}}},
                                              {"fuse_residual_connection", {{}, {false}}},
                                              {"fuse_with_relu", {{}, {false}}},
                                              {"grad_inplace", {{"lookup_table", "lookup_table_v2"}, {}}},
                                              {"head_number", {{"matmul"}, {int32_t{1}}}},
                                              {"height_sections", {tables, {std::vector<int64_t>{}}}},
                                              {"interp_method", {{"bilinear_interp"}, {"bilinear"s}}},
                                              {"interp_method", {{"nearest_interp"}, {"nearest"s}}},
                                              {"interp_method", {{"trilinear_interp"}, {"trilinear"s}}},
                                              {"is_distributed", {{}, {false}}},
                                              {"is_test", {}},
                                              {"min_row_size_to_use_multithread", {{"adam"}, {}}},
                                              {"mkldnn_data_type", {}},
                                              {"model_from_memory", {{"load_combine"}, {false}}},
                                              {"numeric_stable_mode", {{"softmax_with_cross_entropy"}, {}}},
                                              {"op_callstack", {}},
                                              {"op_device", {}},
                                              {"out_d", {interpolate, {}}},  // of volumes
                                              {"overwrite", {{"gather"}, {}}},
                                              {"out_scale", {}},  // of activations, for other programs
                                              {"padding_algorithm", {{}, {"EXPLICIT"s}}},
                                              {"padding_weights", {{"fc"}, {false}}},
                                              {"remote_prefetch", {{}, {false}}},
                                              {"scale_out", {{}, {1.0F}}},
                                              {"scale_x", {{}, {1.0F}}},
                                              {"scale_y", {{}, {1.0F, std::vector<float>{1.0F}}}},
                                              {"skip_eager_deletion_vars", {blocks, {}}},
                                              {"skip_quant", {}},
                                              {"table_names", {tables, {std::vector<std::string>{}}}},
                                              {"trainable_statistics", {{}, {false}}},
                                              {"trainer_id", {tables, {}}},
                                              {"use_addto", {}},
                                              {"use_cudnn", {}},
                                              {"use_mkldnn", {}},
                                              {"use_quantizer", {}},
                                              {"workspace_size_MB", {}},
                                              {"x_data_format", {{}, {""s}}},
                                              {"y_data_format", {{}, {""s}}}};
  return *attrs;
}

// Whether the operator, or the one that it is the gradient of, is among those of the attribute.
bool IsOf(std::string_view type, const NeutralAttr& attr) {
  constexpr std::string_view kGrad = "_grad";
  if (type.ends_with(kGrad)) {
    type.remove_suffix(kGrad.size());
  }
  return attr.types.empty() || attr.types.contains(type);
}

bool IsSame(const Attribute& value, const Attribute& expected) {
  try {
    return Coerce(value, expected) == expected;
  } catch (const TypeMismatch&) {
    return false;
  }
}

}  // namespace

bool IsFluidAttr(std::string_view type, std::string_view name) {
  const auto [begin, end] = FluidAttrs().equal_range(name);
  return std::any_of(begin, end, [type](const auto& attr) { return IsOf(type, attr.second); });
}

bool IsNeutralFluidAttr(std::string_view type, const std::string& name, const Attribute& value) {
  bool known = false;
  std::string expected;
  const auto [begin, end] = FluidAttrs().equal_range(name);
  for (auto it = begin; it != end; ++it) {
    const std::vector<Attribute>& values = it->second.values;
    if (!IsOf(type, it->second)) {
      continue;
    }
    if (values.empty() || std::any_of(values.begin(), values.end(), [&](const auto& v) { return IsSame(value, v); })) {
      return true;
    }
    for (const Attribute& neutral : values) {
      expected += (known ? " or " : "") + ToString(neutral);
      known = true;
    }
  }
  HR_ENFORCE(!known, Unimplemented, "operator '", type, "' only has attribute '", name, "' as ", expected, ", got ",
             ToString(value));
  return false;
}

void DropNeutralFluidOutputs(OpDesc* op) {
  if (op->type != "hierarchical_sigmoid") {
    return;
  }
  const auto weight = op->inputs.find("W");
  const auto result = op->outputs.find("W_Out");
  if (weight != op->inputs.end() && result != op->outputs.end() && weight->second == result->second) {
    op->outputs.erase(result);
  }
}

}  // namespace headrace
