#include "framework/lod_tensor.h"

namespace headrace {

void CheckLoD(const LoD& lod, int64_t rows) {
  for (size_t level = 0; level < lod.size(); ++level) {
    const LoDOffsets& offsets = lod[level];
    HR_ENFORCE(offsets.size() >= 2, InvalidArgument, "LoD level ", level, " has ", offsets.size(),
               " offsets, expected at least 2: the start and the end of a sequence");
    HR_ENFORCE(offsets.front() == 0, InvalidArgument, "LoD level ", level, " starts with ", offsets.front(),
               ", expected 0");
    for (size_t i = 1; i < offsets.size(); ++i) {
      HR_ENFORCE(offsets[i - 1] <= offsets[i], InvalidArgument, "LoD level ", level, " decreases from ", offsets[i - 1],
                 " to ", offsets[i], " at offset ", i);
    }
    const bool deepest = level + 1 == lod.size();
    const size_t expected =
        deepest ? static_cast<size_t>(rows) : lod[level + 1].size() - (lod[level + 1].empty() ? 0 : 1);
    HR_ENFORCE(offsets.back() == expected, InvalidArgument, "LoD level ", level, " ends with ", offsets.back(),
               ", expected ", expected,
               deepest ? ", the number of rows" : ", the number of sequences of the next level");
  }
}

LoD LengthsToOffsets(const LoD& lengths) {
  LoD offsets(lengths.size());
  for (size_t level = 0; level < lengths.size(); ++level) {
    size_t end = 0;
    offsets[level].reserve(lengths[level].size() + 1);
    offsets[level].push_back(0);
    for (const size_t length : lengths[level]) {
      HR_ENFORCE(!__builtin_add_overflow(end, length, &end), InvalidArgument, "the lengths of LoD level ", level,
                 " overflow");
      offsets[level].push_back(end);
    }
  }
  return offsets;
}

LoD OffsetsToLengths(const LoD& offsets) {
  LoD lengths(offsets.size());
  for (size_t level = 0; level < offsets.size(); ++level) {
    for (size_t i = 1; i < offsets[level].size(); ++i) {
      HR_ENFORCE(offsets[level][i - 1] <= offsets[level][i], InvalidArgument, "LoD level ", level, " decreases from ",
                 offsets[level][i - 1], " to ", offsets[level][i], " at offset ", i);
      lengths[level].push_back(offsets[level][i] - offsets[level][i - 1]);
    }
  }
  return lengths;
}

std::string ToString(const LoD& lod) {
  constexpr size_t kShown = 20;
  std::string text = "[";
  for (size_t level = 0; level < lod.size(); ++level) {
    text += level == 0 ? "[" : ", [";
    const size_t size = lod[level].size();
    for (size_t i = 0; i < size; ++i) {
      if (size > kShown && i == kShown / 2) {
        text += ", ...";
        i = size - kShown / 2;
      }
      text += (i == 0 ? "" : ", ") + std::to_string(lod[level][i]);
    }
    text += ']';
  }
  return text + "]";
}

}  // namespace headrace
