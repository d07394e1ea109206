#include "framework/tensor_serialization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace headrace {
namespace {

TEST(TensorSerialization, MoreLoDLevelsThanATensorHasAreRefusedBeforeTheyTakeMemory) {
  std::string bytes(1 << 20, '\0');
  const uint64_t levels = 100'000;  // all empty
  std::memcpy(bytes.data() + sizeof(uint32_t), &levels, sizeof(levels));
  MemorySource source("the bytes", bytes);
  LoDTensor tensor;
  EXPECT_THAT([&] { ReadTensor(&source, &tensor); },
              testing::ThrowsMessage<DataLoss>(testing::HasSubstr("it has 100000 LoD levels, at most 64")));
  EXPECT_EQ(source.left(), bytes.size() - sizeof(uint32_t) - sizeof(levels));
}

}  // namespace
}  // namespace headrace
