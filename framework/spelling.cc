#include "framework/spelling.h"

#include <algorithm>
#include <cstddef>

namespace headrace {
namespace {

constexpr size_t kLongestName = 64;  // that is compared: the comparison takes quadratic time
constexpr size_t kMostSuggestions = 3;

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string DidYouMean(std::string_view name, const std::vector<std::string>& known) {
  if (name.size() > kLongestName) {
    return "";
  }
  size_t least = std::max<size_t>(1, name.size() / 3);
  std::vector<std::string_view> closest;
  for (const std::string& other : known) {
    const size_t distance = other.size() > 2 * kLongestName ? other.size() : EditDistance(name, other);
    if (distance < least) {
      closest.clear();
      least = distance;
    }
    if (distance == least) {
      closest.push_back(other);
    }
  }
  if (closest.empty() || closest.size() > kMostSuggestions) {
    return "";
  }
  std::string text = "; did you mean ";
  for (size_t i = 0; i < closest.size(); ++i) {
    text.append(i == 0 ? "'" : " or '").append(closest[i]).append("'");
  }
  return text + "?";
}

}  // namespace headrace
