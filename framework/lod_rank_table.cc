#include "framework/lod_rank_table.h"

#include <algorithm>

#include "framework/errors.h"

namespace headrace {

void LoDRankTable::Reset(const LoD& lod, size_t level) {
  HR_ENFORCE(level < lod.size(), InvalidArgument, "expected a LoD with a level ", level, ", got ", lod.size(),
             " levels");
  level_ = level;
  coarse_lod_.assign(lod.begin(), lod.begin() + static_cast<std::ptrdiff_t>(level));
  const LoDOffsets& offsets = lod[level];
  items_.clear();
  items_.reserve(offsets.size());
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    items_.push_back({i, offsets[i + 1] - offsets[i]});
  }
  std::sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
    return a.length != b.length ? a.length > b.length : a.index < b.index;
  });
}

size_t LoDRankTable::ActiveAt(size_t step) const {
  const auto end =
      std::partition_point(items_.begin(), items_.end(), [step](const Item& item) { return item.length > step; });
  return static_cast<size_t>(end - items_.begin());
}

}  // namespace headrace
