#include "framework/ddim.h"

#include "framework/errors.h"
#include "framework/memory_pool.h"

namespace headrace {

void DDim::Grow(size_t capacity) {
  const size_t wanted = std::max(capacity, 2 * capacity_);
  int64_t* grown = PoolAllocator<int64_t>().allocate(wanted);
  std::copy_n(data_, size_, grown);
  Release();
  data_ = grown;
  capacity_ = wanted;
}

void DDim::FreeData() { MemoryPool::Free(data_); }

int64_t Product(const DDim& dims) {
  int64_t product = 1;
  bool zero = false;
  for (const int64_t dim : dims) {
    HR_ENFORCE(dim >= 0, InvalidArgument, "shape ", ToString(dims), " has a negative or unknown dimension");
    zero = zero || dim == 0;
    HR_ENFORCE(dim == 0 || !__builtin_mul_overflow(product, dim, &product), InvalidArgument, "shape ", ToString(dims),
               " has more elements than an int64 can count");
  }
  return zero ? 0 : product;
}

void CheckDims(const DDim& dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) {
    HR_ENFORCE(dim >= -1, InvalidArgument, "shape ", ToString(dims), " has a dimension below -1");
    HR_ENFORCE(dim <= 0 || !__builtin_mul_overflow(product, dim, &product), InvalidArgument, "shape ", ToString(dims),
               " has more elements than an int64 can count");
  }
}

int64_t AddExtents(int64_t a, int64_t b) {
  int64_t sum = 0;
  HR_ENFORCE(!__builtin_add_overflow(a, b, &sum), InvalidArgument, "a dimension of ", a, " + ", b,
             " is more than an int64 can count");
  return sum;
}

int64_t MultiplyExtents(int64_t a, int64_t b) {
  int64_t product = 0;
  HR_ENFORCE(!__builtin_mul_overflow(a, b, &product), InvalidArgument, "a dimension of ", a, " * ", b,
             " is more than an int64 can count");
  return product;
}

std::string ToString(const DDim& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  }
  return text + "]";
}

bool Matches(const DDim& declared, const DDim& actual) {
  if (declared.size() != actual.size()) {
    return false;
  }
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i] != -1 && declared[i] != actual[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace headrace
