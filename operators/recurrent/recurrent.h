// What recurrent operators share: sequences as batches of steps, and activations by name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"
#include "operators/math/vector_math.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {

// The rows of sequences, step by step: step t has a row of each sequence that is longer than t, the longest sequence
// first, so that the sequences of a step are the first ones of the step before. "Batch order" is that of the steps.
class StepBatches {
 public:
  // `offsets`: a checked level of a LoD. `reversed`: the last row of a sequence is its first step.
  StepBatches(const LoDOffsets& offsets, bool reversed) {
    const size_t n = offsets.size() - 1;
    const auto length = [&offsets](size_t s) { return offsets[s + 1] - offsets[s]; };
    sequences_.resize(n);
    std::iota(sequences_.begin(), sequences_.end(), 0);
    std::sort(sequences_.begin(), sequences_.end(),
              [&](size_t a, size_t b) { return length(a) != length(b) ? length(a) > length(b) : a < b; });
    rows_.reserve(offsets.back() - offsets.front());
    for (size_t t = 0; n != 0 && t < length(sequences_[0]); ++t) {
      begin_.push_back(static_cast<int64_t>(rows_.size()));
      for (size_t k = 0; k < n && length(sequences_[k]) > t; ++k) {
        const size_t s = sequences_[k];
        rows_.push_back(static_cast<int64_t>(reversed ? offsets[s + 1] - 1 - t : offsets[s] + t));
      }
    }
    begin_.push_back(static_cast<int64_t>(rows_.size()));
  }

  size_t steps() const { return begin_.size() - 1; }
  // The rows of step `t` in batch order: [Begin(t), Begin(t) + Size(t)).
  int64_t Begin(size_t t) const { return begin_[t]; }
  int64_t Size(size_t t) const { return begin_[t + 1] - begin_[t]; }
  // Sequences, empty ones included: no step has more rows.
  int64_t NumSequences() const { return static_cast<int64_t>(sequences_.size()); }

  // Row i of `to`, in batch order, becomes that of `from`, in the order of the sequences; and back.
  template <typename T>
  void ToBatches(const T* from, int64_t width, T* to) const {
    for (const int64_t row : rows_) {
      to = std::copy_n(from + row * width, width, to);
    }
  }
  template <typename T>
  void FromBatches(const T* from, int64_t width, T* to) const {
    for (const int64_t row : rows_) {
      std::copy_n(from, width, to + row * width);
      from += width;
    }
  }

  // The same for the rows of step `t` alone.
  template <typename T>
  void ToStep(size_t t, const T* from, int64_t width, T* to) const {
    for (int64_t i = begin_[t]; i < begin_[t + 1]; ++i) {
      to = std::copy_n(from + rows_[static_cast<size_t>(i)] * width, width, to);
    }
  }
  template <typename T>
  void FromStep(size_t t, const T* from, int64_t width, T* to) const {
    for (int64_t i = begin_[t]; i < begin_[t + 1]; ++i) {
      std::copy_n(from, width, to + rows_[static_cast<size_t>(i)] * width);
      from += width;
    }
  }

  // Each row of `to`, in the order of the sequences, becomes the row of `from` that is its step before; those of first
  // steps become rows of `first`, longest sequence first, or zeros if it is nullptr.
  template <typename T>
  void OfStepBefore(const T* from, const T* first, int64_t width, T* to) const {
    for (size_t t = 0; t < steps(); ++t) {
      for (int64_t i = begin_[t]; i < begin_[t + 1]; ++i) {
        const int64_t k = i - begin_[t];  // the sequence
        T* row = to + rows_[static_cast<size_t>(i)] * width;
        if (t != 0) {
          std::copy_n(from + rows_[static_cast<size_t>(begin_[t - 1] + k)] * width, width, row);
        } else if (first != nullptr) {
          std::copy_n(first + k * width, width, row);
        } else {
          std::fill_n(row, width, T(0));
        }
      }
    }
  }

  // Adds up the rows of a tensor in the order of the sequences, one after the other in batch order.
  template <typename T>
  void AddInBatchOrder(const T* from, int64_t width, T* sum) const {
    for (const int64_t row : rows_) {
      for (int64_t c = 0; c < width; ++c) {
        sum[c] += from[row * width + c];
      }
    }
  }

  // The same for tensors with a row for each sequence, such as initial states.
  template <typename T>
  void SortStates(const T* from, int64_t width, T* to) const {
    for (const size_t s : sequences_) {
      to = std::copy_n(from + static_cast<int64_t>(s) * width, width, to);
    }
  }
  template <typename T>
  void UnsortStates(const T* from, int64_t width, T* to) const {
    for (const size_t s : sequences_) {
      std::copy_n(from, width, to + static_cast<int64_t>(s) * width);
      from += width;
    }
  }

 private:
  PoolVector<size_t> sequences_;  // longest first
  PoolVector<int64_t> rows_;      // in batch order
  PoolVector<int64_t> begin_;
};

enum class Activation { kIdentity, kSigmoid, kTanh, kRelu };

inline Activation ActivationOf(HashedName name) {
  if (name == "sigmoid") {
    return Activation::kSigmoid;
  }
  if (name == "tanh") {
    return Activation::kTanh;
  }
  return name == "relu" ? Activation::kRelu : Activation::kIdentity;
}

// Declares the attribute `name`, an activation.
inline OpRegistrar&& ActivationAttr(OpRegistrar&& op, const char* name, const char* comment, const char* preset) {
  return std::move(op).Attr<std::string>(
      name, std::string(comment) + ": 'sigmoid', 'tanh', 'relu' or 'identity'", preset,
      [name](const std::string& value) {
        HR_ENFORCE(value == "sigmoid" || value == "tanh" || value == "relu" || value == "identity", InvalidArgument,
                   "attribute ", name, ": expected 'sigmoid', 'tanh', 'relu' or 'identity', got '", value, "'");
      });
}

// `y` may be `x`.
template <typename T>
void Activate(Activation activation, int64_t n, const T* x, T* y) {
  switch (activation) {
    case Activation::kSigmoid:
      return VectorSigmoid(n, x, y);
    case Activation::kTanh:
      return VectorTanh(n, x, y);
    case Activation::kRelu:
      std::transform(x, x + n, y, [](T value) { return value < 0 ? T(0) : value; });
      return;
    case Activation::kIdentity:
      if (x != y) {
        std::copy_n(x, n, y);
      }
      return;
  }
}

// The derivative, from the result.
template <typename T>
T ActivationDerivative(Activation activation, T y) {
  switch (activation) {
    case Activation::kSigmoid:
      return y * (1 - y);
    case Activation::kTanh:
      return 1 - y * y;
    case Activation::kRelu:
      return static_cast<T>(y > 0);
    case Activation::kIdentity:
      break;
  }
  return T(1);
}

// Adds the rows of a matrix [rows, width] up.
template <typename T>
void AddRows(const T* rows, int64_t n, int64_t width, T* sum) {
  for (int64_t r = 0; r < n; ++r, rows += width) {
    for (int64_t c = 0; c < width; ++c) {
      sum[c] += rows[c];
    }
  }
}

// Adds `bias` (nullptr: none) to each row of `to`.
template <typename T>
void AddBias(const T* bias, int64_t rows, int64_t width, T* to) {
  if (bias == nullptr) {
    return;
  }
  ParallelFor(rows, RowsPerBlock(width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        to[r * width + c] += bias[c];
      }
    }
  });
}

// An optional tensor of initial states has a row for each sequence of `input`, which only the LoD at run time tells.
inline void EnforceStateRows(const ExecutionContext& ctx, HashedName slot, HashedName input) {
  const LoDTensor* states = ctx.InputOrNull(slot);
  const int64_t sequences = SequenceCount(SequencesOf(ctx, input));
  HR_ENFORCE(states == nullptr || states->dims()[0] == sequences, InvalidArgument, "input ", slot, ": expected ",
             sequences, " rows, one for each sequence of ", input, ", got dims ", ToString(states->dims()));
}

// The rows of an optional tensor of initial states, longest sequence first; empty without one.
template <typename T>
PoolVector<T> InitialStates(const ExecutionContext& ctx, HashedName slot, const StepBatches& batches) {
  const LoDTensor* tensor = ctx.InputOrNull(slot);
  if (tensor == nullptr) {
    return {};
  }
  PoolVector<T> sorted(static_cast<size_t>(tensor->numel()));
  batches.SortStates(tensor->data<T>(), tensor->dims()[1], sorted.data());
  return sorted;
}

}  // namespace headrace::ops
