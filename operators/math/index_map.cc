#include "operators/math/index_map.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "operators/math/ordered_sum.h"

namespace headrace::ops {

IndexMap IndexMap::OfRows(const DDim& from_dims, const PoolVector<int64_t>& rows) {
  DDim to = from_dims;
  to[0] = static_cast<int64_t>(rows.size());
  return IndexMap(from_dims, to, [&rows](size_t d, int64_t i) { return d == 0 ? rows[static_cast<size_t>(i)] : i; });
}

bool IndexMap::Empty(const DDim& dims) { return std::find(dims.begin(), dims.end(), 0) != dims.end(); }

IndexMap::Plan IndexMap::MakePlan() const {
  // Trailing dimensions that stay as they are move as a whole.
  size_t walked = to_dims_.size();
  int64_t run = 1;
  const auto stays = [this](size_t d) {
    const PoolVector<int64_t>& map = maps_[d];
    for (size_t i = 0; i < map.size(); ++i) {
      if (map[i] != static_cast<int64_t>(i)) {
        return false;
      }
    }
    return from_dims_[d] == to_dims_[d];
  };
  while (walked > 0 && stays(walked - 1)) {
    run *= to_dims_[--walked];
  }
  Plan plan;
  if (walked == 0) {
    plan.segments.push_back({0, 0, run, 1});
    plan.row = run;
    return plan;
  }
  // In the dimension before, so do neighbours and, where these are single elements, those that are equally far apart;
  // no more of them than leave work for other threads.
  for (const int64_t from : maps_[walked - 1]) {
    Segment* last = plan.segments.empty() ? nullptr : &plan.segments.back();
    if (last != nullptr && last->n == 1 && from >= 0 && last->from >= 0) {
      last->step = from - last->from;
    }
    const bool continues =
        last != nullptr && last->n < kElementsPerBlock &&
        (from < 0 ? last->from < 0 : last->from >= 0 && last->from + last->n * last->step == from * run);
    if (continues) {
      last->n += run;
    } else {
      plan.segments.push_back({plan.row, from < 0 ? -1 : from * run, run, 1});
    }
    plan.row += run;
  }
  plan.outer.resize(walked - 1);
  int64_t stride = run * from_dims_[walked - 1];
  for (size_t d = walked - 1; d-- > 0;) {
    plan.outer[d] = stride;
    plan.rows *= to_dims_[d];
    stride *= from_dims_[d];
  }
  return plan;
}

namespace {

template <size_t kSize>
void CopySteps(const std::byte* from, int64_t n, std::ptrdiff_t step, std::byte* to) {
  if (step == -1) {  // so often that it is vectorised
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      std::memcpy(to + i * kSize, from - i * static_cast<std::ptrdiff_t>(kSize), kSize);
    }
    return;
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    std::memcpy(to + i * kSize, from + i * step * static_cast<std::ptrdiff_t>(kSize), kSize);
  }
}

// n elements of `size` bytes, `step` apart from `from` on.
void CopyRun(const std::byte* from, int64_t n, int64_t step, size_t size, std::byte* to) {
  if (step == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * size);
    return;
  }
  switch (size) {
    case 1:
      return CopySteps<1>(from, n, step, to);
    case 2:
      return CopySteps<2>(from, n, step, to);
    case 4:
      return CopySteps<4>(from, n, step, to);
    default:
      return CopySteps<8>(from, n, step, to);
  }
}

}  // namespace

void IndexMap::Move(const LoDTensor& x, LoDTensor* out, const void* fill) const {
  const size_t size = SizeOf(x.dtype());
  auto* to = static_cast<std::byte*>(out->mutable_data(x.dtype()));
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  ForEachRunInParallel([=](int64_t at, int64_t from_at, int64_t n, int64_t step) {
    std::byte* run = to + static_cast<size_t>(at) * size;
    const size_t bytes = static_cast<size_t>(n) * size;
    if (from_at >= 0) {
      CopyRun(from + static_cast<size_t>(from_at) * size, n, step, size, run);
    } else if (fill == nullptr) {
      std::memset(run, 0, bytes);
    } else {
      for (size_t i = 0; i < bytes; i += size) {
        std::memcpy(run + i, fill, size);
      }
    }
  });
}

namespace {

// Adds the n elements from `d` on to those that they came from, `step` apart from dx[from] on, as far as these are in
// [begin, end).
template <typename T>
void AddRun(const T* d, int64_t from, int64_t n, int64_t step, int64_t begin, int64_t end, T* dx) {
  if (step == 0) {
    if (begin <= from && from < end) {
      dx[from] += Sum(n, d);
    }
    return;
  }
  int64_t first = 0;
  int64_t last = n;
  if (const int64_t furthest = from + (n - 1) * step;
      std::min(from, furthest) < begin || std::max(from, furthest) >= end) {
    const int64_t width = std::abs(step);
    const auto steps = [width](int64_t distance) { return (std::max<int64_t>(0, distance) + width - 1) / width; };
    first = steps(step > 0 ? begin - from : from - end + 1);
    last = std::min(n, steps(step > 0 ? end - from : from - begin + 1));
  }
  if (step == 1) {  // so often that it is vectorised
    for (int64_t i = first; i < last; ++i) {
      dx[from + i] += d[i];
    }
    return;
  }
  for (int64_t i = first; i < last; ++i) {
    dx[from + i * step] += d[i];
  }
}

}  // namespace

template <typename T>
void IndexMap::AddBack(const LoDTensor& out_grad, LoDTensor* x_grad) const {
  T* dx = x_grad->mutable_data<T>();
  const T* d = out_grad.data<T>();
  const int64_t numel = x_grad->numel();
  ParallelFill(dx, numel, T(0));
  if (Empty(to_dims_) || numel == 0) {
    return;
  }
  const Plan plan = MakePlan();
  const auto add_within = [=](int64_t begin, int64_t end) {
    return [=](int64_t at, int64_t from, int64_t n, int64_t step) {
      if (from >= 0) {
        AddRun(d + at, from, n, step, begin, end, dx);
      }
    };
  };
  // Each thread adds to elements of its own, in the order of `to`: those with some indices in one of the outer
  // dimensions, or, where none has more than one, some that lie side by side. The first dimension that is long enough
  // for several threads is the one in which theirs lie closest together.
  const auto outer_end = from_dims_.begin() + static_cast<std::ptrdiff_t>(plan.outer.size());
  constexpr int64_t kLong = 16;
  const auto first_long = std::find_if(from_dims_.begin(), outer_end, [](int64_t extent) { return extent >= kLong; });
  const auto split = first_long != outer_end ? first_long : std::max_element(from_dims_.begin(), outer_end);
  if (split != outer_end && *split > 1) {
    ForEachRunByIndex(plan, static_cast<size_t>(split - from_dims_.begin()), add_within(0, numel));
    return;
  }
  const int64_t grain = std::max(kElementsPerBlock, (numel + PoolThreads() - 1) / PoolThreads());
  ParallelFor(numel, grain, [&](int64_t begin, int64_t end) {
    ForEachRunOf(plan, 0, plan.rows, 0, plan.segments.size(), add_within(begin, end));
  });
}

template void IndexMap::AddBack<float>(const LoDTensor&, LoDTensor*) const;
template void IndexMap::AddBack<double>(const LoDTensor&, LoDTensor*) const;

}  // namespace headrace::ops
