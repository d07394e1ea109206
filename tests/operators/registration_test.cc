// What holds for every operator that is registered.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {
namespace {

// An operator with a variable in every slot and a value for every attribute.
OpDesc Complete(const OpInfo& info) {
  OpDesc op{info.type, {}, {}, {}};
  for (const SlotInfo& slot : info.inputs) {
    op.inputs[slot.name] = {slot.name + "_in"};
  }
  for (const SlotInfo& slot : info.outputs) {
    op.outputs[slot.name] = {slot.name + "_out"};
  }
  for (const AttrInfo& attr : info.attrs) {
    op.attrs[attr.name] = attr.default_value.value_or(attr.like);
  }
  return op;
}

TEST(Registration, GivesEveryGradientAnOperatorWithItsSlotsAndAttributes) {
  int checked = 0;
  for (const std::string& type : OpRegistry::Types()) {
    const OpInfo& info = OpRegistry::Get(type);
    for (const GradientMaker* maker : {&info.gradient, &info.array_gradient}) {
      for (OpDesc& gradient : *maker ? (*maker)(Complete(info)) : std::vector<OpDesc>()) {
        EXPECT_NO_THROW(OpRegistry::Check(gradient)) << type;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 40);
}

TEST(Registration, GivesEveryGradientItsUse) {
  for (const std::string& type : OpRegistry::Types()) {
    if (type.ends_with("_grad")) {
      const OpInfo* forward = OpRegistry::Find(type.substr(0, type.size() - 5));
      EXPECT_TRUE(forward != nullptr && (forward->gradient || forward->block_gradient || forward->steps_gradient))
          << type;
    }
  }
}

TEST(Registration, PairsFloatWithDouble) {
  for (const std::string& type : OpRegistry::Types()) {
    const auto& kernels = OpRegistry::Get(type).kernels;
    EXPECT_EQ(kernels.contains(DataType::kFloat32), kernels.contains(DataType::kFloat64) || type == "assign_value")
        << type;
  }
}

TEST(Registration, SaysWhatEverythingIsFor) {
  for (const std::string& type : OpRegistry::Types()) {
    const OpInfo& info = OpRegistry::Get(type);
    EXPECT_FALSE(info.comment.empty()) << type;
    for (const auto* slots : {&info.inputs, &info.outputs}) {
      for (const SlotInfo& slot : *slots) {
        EXPECT_FALSE(slot.comment.empty()) << type << ", " << slot.name;
      }
    }
    for (const AttrInfo& attr : info.attrs) {
      EXPECT_FALSE(attr.comment.empty()) << type << ", " << attr.name;
    }
  }
}

}  // namespace
}  // namespace headrace
