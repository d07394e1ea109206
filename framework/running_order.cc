#include "framework/running_order.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>

#include "framework/block_runner.h"
#include "framework/op_registry.h"

namespace headrace {
namespace {

bool Intersects(const std::set<std::string>& known, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&known](const auto& name) { return name != kEmptyVarName && known.contains(name); });
}

}  // namespace

std::vector<const OpDesc*> RunningOrder(const BlockDesc& block) {
  const auto& ops = block.ops();
  std::vector<bool> first(ops.size());
  std::set<std::string> inputs;  // of the operators chosen so far, all of which are later in the program
  std::set<std::string> outputs;
  for (size_t i = ops.size(); i-- > 0;) {
    const OpDesc& op = *ops[i];
    std::vector<std::string> op_inputs = op.InputNames();
    std::vector<std::string> op_outputs = op.OutputNames();
    AddInnerNames(block, op, &op_inputs, &op_outputs);
    first[i] = OpRegistry::Get(op.type).reads_data || Intersects(inputs, op_outputs) ||
               Intersects(outputs, op_outputs) || Intersects(outputs, op_inputs);
    if (first[i]) {
      inputs.insert(op_inputs.begin(), op_inputs.end());
      outputs.insert(op_outputs.begin(), op_outputs.end());
    }
  }
  std::vector<const OpDesc*> order;
  for (const bool wanted : {true, false}) {
    for (size_t i = 0; i < ops.size(); ++i) {
      if (first[i] == wanted) {
        order.push_back(ops[i].get());
      }
    }
  }
  return order;
}

}  // namespace headrace
