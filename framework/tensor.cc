#include "framework/tensor.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "framework/thread_pool.h"

namespace headrace {
namespace {

size_t ByteCount(int64_t numel, DataType dtype, const DDim& dims) {
  size_t bytes = 0;
  HR_ENFORCE(!__builtin_mul_overflow(static_cast<size_t>(numel), SizeOf(dtype), &bytes), InvalidArgument,
             "a tensor of shape ", ToString(dims), " and type ", DataTypeName(dtype), " does not fit into memory");
  return bytes;
}

}  // namespace

Tensor::Tensor(std::shared_ptr<Allocation> allocation, DataType dtype, DDim dims, size_t offset)
    : allocation_(std::move(allocation)),
      dtype_(dtype),
      dims_(std::move(dims)),
      numel_(Product(dims_)),
      offset_(offset) {
  HR_ENFORCE(allocation_ != nullptr, InvalidArgument, "a tensor needs memory, got none");
  const size_t bytes = ByteCount(numel_, dtype_, dims_);
  HR_ENFORCE(offset_ <= allocation_->size() && bytes <= allocation_->size() - offset_, InvalidArgument,
             "a tensor of shape ", ToString(dims_), " and type ", DataTypeName(dtype_), " needs ", bytes,
             " bytes, but the memory has ", allocation_->size(), " and the tensor starts at byte ", offset_);
  const auto address = reinterpret_cast<uintptr_t>(allocation_->data()) + offset_;
  HR_ENFORCE(address % SizeOf(dtype_) == 0, InvalidArgument, "memory for ", DataTypeName(dtype_),
             " must be aligned to ", SizeOf(dtype_), " bytes, got offset ", offset_, " into memory at ",
             allocation_->data());
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    allocation_ = std::move(other.allocation_);
    dtype_ = std::exchange(other.dtype_, DataType::kFloat32);
    dims_ = std::exchange(other.dims_, {});
    numel_ = std::exchange(other.numel_, 1);
    offset_ = std::exchange(other.offset_, 0);
  }
  return *this;
}

Tensor& Tensor::Resize(DDim dims) {
  numel_ = Product(dims);
  dims_ = std::move(dims);
  return *this;
}

void* Tensor::mutable_data(DataType dtype) {
  const size_t bytes = ByteCount(numel_, dtype, dims_);
  const bool reuse = allocation_ != nullptr && offset_ % SizeOf(dtype) == 0 && offset_ <= allocation_->size() &&
                     bytes <= allocation_->size() - offset_ && IsSoleHolder();
  if (!reuse) {
    allocation_ = Allocation::OnHeap(bytes);
    offset_ = 0;
  }
  dtype_ = dtype;
  return raw_mutable_data();
}

const void* Tensor::raw_data() const {
  HR_ENFORCE(allocation_ != nullptr, FailedPrecondition, "the tensor of shape ", ToString(dims_), " has no memory yet");
  HR_ENFORCE(ByteCount(numel_, dtype_, dims_) <= allocation_->size() - offset_, FailedPrecondition,
             "the tensor was resized to ", ToString(dims_), ", which does not fit into its ",
             allocation_->size() - offset_, " bytes of memory; mutable_data gives it new memory");
  return static_cast<const std::byte*>(allocation_->data()) + offset_;
}

void* Tensor::raw_mutable_data() { return const_cast<void*>(std::as_const(*this).raw_data()); }

// Copying and dropping the pointer orders this after what former holders did: use_count() alone orders nothing.
bool Tensor::IsSoleHolder() const {
  if (allocation_ == nullptr || !allocation_->on_heap() || allocation_.use_count() != 1) {
    return false;
  }
  std::shared_ptr<Allocation>(allocation_).reset();
  return true;
}

void Tensor::Unshare() {
  if (initialized() && !IsSoleHolder()) {
    CopyFrom(*this);
  }
}

Tensor Tensor::Slice(int64_t begin, int64_t end) const {
  HR_ENFORCE(!dims_.empty(), OutOfRange, "a scalar has no rows to slice");
  HR_ENFORCE(0 <= begin && begin <= end && end <= dims_[0], OutOfRange, "rows [", begin, ", ", end,
             ") are not within a tensor of ", dims_[0], " rows");
  HR_ENFORCE(allocation_ != nullptr, FailedPrecondition, "the tensor of shape ", ToString(dims_), " has no memory yet");
  DDim dims = dims_;
  dims[0] = end - begin;
  const size_t row_bytes = dims_[0] == 0 ? 0 : nbytes() / static_cast<size_t>(dims_[0]);
  return Tensor(allocation_, dtype_, std::move(dims), offset_ + static_cast<size_t>(begin) * row_bytes);
}

void Tensor::CopyFrom(const Tensor& src) {
  // A copy of the handle: `src` may be this very tensor, which then gets memory of its own (the handle is a second
  // holder).
  const Tensor source = src;  // NOLINT(performance-unnecessary-copy-initialization): see above
  const void* from = source.raw_data();
  Resize(source.dims_);
  void* to = mutable_data(source.dtype_);
  if (source.nbytes() != 0 && to != from) {
    constexpr int64_t kBytesPerBlock = 1 << 17;
    ParallelFor(static_cast<int64_t>(source.nbytes()), kBytesPerBlock, [=](int64_t begin, int64_t end) {
      std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                  static_cast<size_t>(end - begin));
    });
  }
}

void Tensor::Clear() { *this = Tensor(); }

void Tensor::CheckType(DataType wanted) const {
  HR_ENFORCE(allocation_ != nullptr, FailedPrecondition, "the tensor of shape ", ToString(dims_), " has no memory yet");
  HR_ENFORCE(wanted == dtype_, TypeMismatch, "the tensor holds ", DataTypeName(dtype_), ", not ", DataTypeName(wanted));
}

}  // namespace headrace
