// What a misspelt name may have been meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// "; did you mean 'a' or 'b'?" with the known names that are closest to `name` by Levenshtein distance, at most
// three; empty if none is close.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

}  // namespace headrace
