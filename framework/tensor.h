// A dense, row-major, contiguous array over an Allocation.
//
// Copying a Tensor shares its memory (as in Paddle's ShareDataWith); `CopyFrom` copies the elements.
// Thread-safety: as a std::vector: concurrent reads are fine, a write needs exclusive access to the Tensor and to the
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "framework/allocation.h"
#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/errors.h"
#include "framework/export.h"

namespace headrace {

class HEADRACE_API Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor& operator=(const Tensor&) = default;
  // Leaves `other` as a new one.
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor() = default;

  // A tensor over `allocation`, starting `offset` bytes into it. Throws InvalidArgument if the memory is too small for
  // `dims` or the start is not aligned to the element's size.
  Tensor(std::shared_ptr<Allocation> allocation, DataType dtype, DDim dims, size_t offset = 0);

  // False until memory has been given or allocated.
  bool initialized() const { return allocation_ != nullptr; }
  DataType dtype() const { return dtype_; }
  const DDim& dims() const { return dims_; }
  int64_t numel() const { return numel_; }
  size_t nbytes() const { return static_cast<size_t>(numel_) * SizeOf(dtype_); }
  const std::shared_ptr<Allocation>& allocation() const { return allocation_; }

  // Records a new shape, usually before mutable_data, which finds the memory for it. Throws InvalidArgument as Product
  // does.
  Tensor& Resize(DDim dims);

  // The elements for reading. Throws FailedPrecondition if uninitialised, TypeMismatch if T is not the dtype.
  template <typename T>
  const T* data() const {
    CheckType(DataTypeOf<T>::value);
    return static_cast<const T*>(raw_data());
  }

  // The elements for writing, with memory for the current shape: the memory held now is reused if it is heap memory
  // that is not shared and is large enough; otherwise new heap memory is allocated. The old contents are lost when
  // the size grows.
  template <typename T>
  T* mutable_data() {
    return static_cast<T*>(mutable_data(DataTypeOf<T>::value));
  }
  void* mutable_data(DataType dtype);

  // Start of the elements. Throws FailedPrecondition if uninitialised or if a Resize has outgrown the memory.
  const void* raw_data() const;
  // As raw_data, for writing in place into memory that is attached already; never allocates.
  void* raw_mutable_data();

  // Whether it holds heap memory that nothing else holds: no one else sees what is written into it. What former holders
  // did before they let go is visible to this thread.
  bool IsSoleHolder() const;
  // Gives it heap memory of its own with the same elements, unless it has that already, or has no memory. Throws
  // FailedPrecondition if a Resize has outgrown memory that is shared.
  void Unshare();

  // Rows [begin, end) of the first dimension, sharing this memory. Throws OutOfRange.
  Tensor Slice(int64_t begin, int64_t end) const;

  // Becomes a copy of the elements of `src` in memory that is not shared; `src` may be this tensor. Throws
  // FailedPrecondition if `src` is uninitialised.
  void CopyFrom(const Tensor& src);

  // Exchanges the memory for `memory`, which need not have the elements, or for none; shape and dtype stay.
  void SetMemory(std::shared_ptr<Allocation> memory) {
    allocation_ = std::move(memory);
    offset_ = 0;
  }

  // Lets go of the memory; shape and dtype are forgotten.
  void Clear();

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  void CheckType(DataType wanted) const;

  std::shared_ptr<Allocation> allocation_;
  DataType dtype_ = DataType::kFloat32;
  DDim dims_;
  int64_t numel_ = 1;  // that of dims_: no dimensions are a scalar
  size_t offset_ = 0;
};

}  // namespace headrace
