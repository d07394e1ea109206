// Attributes of operators: constants that are part of the program.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "framework/export.h"

namespace headrace {

// The index of another block of the same program.
struct BlockRef {
  int32_t index = 0;
  bool operator==(const BlockRef&) const = default;
};

using Attribute =
    std::variant<std::monostate, bool, int32_t, int64_t, float, double, std::string, std::vector<bool>,
                 std::vector<int32_t>, std::vector<int64_t>, std::vector<float>, std::vector<std::string>, BlockRef>;

using AttributeMap = std::map<std::string, Attribute, std::less<>>;

// "int32", "float", "list of strings", … for messages and documentation.
HEADRACE_API std::string_view AttributeTypeName(const Attribute& attribute);

// "0.5", "[1, 2]", "'same'".
HEADRACE_API std::string ToString(const Attribute& attribute);

// Converts `value` to the alternative that `like` holds: between the integer types in range, from integers to floating
// point and between float and double (rounding, but never to infinity), from an integer to whether it is not 0, lists
// element by element, and an empty list of any kind to an empty list. Throws TypeMismatch otherwise.
HEADRACE_API Attribute Coerce(const Attribute& value, const Attribute& like);

}  // namespace headrace
