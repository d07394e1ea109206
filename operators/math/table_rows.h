// SelectedRows that are a table: each row has one place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "framework/errors.h"
#include "framework/selected_rows.h"
#include "operators/math/row_merge.h"

namespace headrace::ops {

// Thread-safety: any number of threads may look rows up.
class TableRows {
 public:
  // `slot`: whose table it is, for messages. Throws InvalidArgument if a row occurs twice.
  TableRows(const SelectedRows& table, std::string_view slot) : sorted_(Sorted(table.rows())), slot_(slot) {
    const auto twice = std::adjacent_find(sorted_.begin(), sorted_.end(),
                                          [](const auto& a, const auto& b) { return a.first == b.first; });
    HR_ENFORCE(twice == sorted_.end(), InvalidArgument, "input ", slot_, ": expected each row once, got row ",
               twice->first, " at ", twice->second, " and ", std::next(twice)->second);
  }

  // The place of a row. Throws OutOfRange if the table lacks it.
  int64_t operator()(int64_t row) const {
    const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(row, int64_t{0}));
    HR_ENFORCE(found != sorted_.end() && found->first == row, OutOfRange, "input ", slot_, " has no row ", row);
    return found->second;
  }

 private:
  SortedRows sorted_;
  std::string_view slot_;
};

}  // namespace headrace::ops
