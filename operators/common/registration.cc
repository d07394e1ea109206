#include "operators/common/registration.h"

#include <cstdint>
#include <utility>

namespace headrace::ops {

OpRegistrar&& KernelForAllTypes(OpRegistrar&& op, const KernelFn& kernel) {
  return std::move(op)
      .Kernel<bool>(kernel)
      .Kernel<int8_t>(kernel)
      .Kernel<int16_t>(kernel)
      .Kernel<int32_t>(kernel)
      .Kernel<int64_t>(kernel)
      .Kernel<uint8_t>(kernel)
      .Kernel<uint16_t>(kernel)
      .Kernel<uint32_t>(kernel)
      .Kernel<uint64_t>(kernel)
      .Kernel<float16>(kernel)
      .Kernel<bfloat16>(kernel)
      .Kernel<float>(kernel)
      .Kernel<double>(kernel);
}

}  // namespace headrace::ops
