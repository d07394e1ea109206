#include "framework/attribute.h"

#include <cmath>
#include <limits>
#include <locale>
#include <sstream>
#include <type_traits>
#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;

template <typename T>
constexpr bool kIsInteger = std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>;
template <typename T>
constexpr bool kIsNumber = kIsInteger<T> || std::is_floating_point_v<T>;

// Stores `from` in `to` if the value survives; rounding to the nearest floating-point number counts as survival.
template <typename From, typename To>
bool ConvertNumber(From from, To* to) {
  if constexpr (kIsInteger<From> && kIsInteger<To>) {
    if (!std::in_range<To>(from)) {
      return false;
    }
  } else if constexpr (!kIsInteger<From> && kIsInteger<To>) {
    return false;
  } else if constexpr (std::is_same_v<From, double> && std::is_same_v<To, float>) {
    if (std::isfinite(from) && !std::isfinite(static_cast<float>(from))) {
      return false;
    }
  }
  *to = static_cast<To>(from);
  return true;
}

template <typename From, typename To>
bool Convert(const From& from, To* to) {
  if constexpr (std::is_same_v<From, To>) {
    *to = from;
    return true;
  } else if constexpr (kIsNumber<From> && kIsNumber<To>) {
    return ConvertNumber(from, to);
  } else if constexpr (kIsInteger<From> && std::is_same_v<To, bool>) {
    *to = from != 0;
    return true;
  } else if constexpr (kIsList<From> && kIsList<To>) {
    if constexpr (kIsNumber<typename From::value_type> && kIsNumber<typename To::value_type>) {
      to->resize(from.size());
      for (size_t i = 0; i < from.size(); ++i) {
        if (!ConvertNumber(from[i], &(*to)[i])) {
          return false;
        }
      }
      return true;
    } else {
      return from.empty();
    }
  } else {
    return false;
  }
}

void Print(std::ostream& out, const std::string& value) { out << '\'' << value << '\''; }
void Print(std::ostream& out, bool value) { out << (value ? "true" : "false"); }
void Print(std::ostream& out, BlockRef value) { out << "block " << value.index; }
void Print(std::ostream& out, std::monostate) { out << "nothing"; }
template <typename T>
void Print(std::ostream& out, const T& value) {
  if constexpr (kIsList<T>) {
    out << '[';
    for (size_t i = 0; i < value.size(); ++i) {
      out << (i == 0 ? "" : ", ");
      Print(out, static_cast<const typename T::value_type&>(value[i]));
    }
    out << ']';
  } else {
    out << value;
  }
}

}  // namespace

std::string_view AttributeTypeName(const Attribute& attribute) {
  static constexpr std::string_view kNames[] = {
      "nothing",       "bool",          "int32",         "int64",          "float",           "double", "string",
      "list of bools", "list of int32", "list of int64", "list of floats", "list of strings", "block"};
  static_assert(std::size(kNames) == std::variant_size_v<Attribute>);
  return kNames[attribute.index()];
}

std::string ToString(const Attribute& attribute) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  std::visit([&out](const auto& value) { Print(out, value); }, attribute);
  return out.str();
}

Attribute Coerce(const Attribute& value, const Attribute& like) {
  return std::visit(
      [&](const auto& from, const auto& to_example) -> Attribute {
        std::remove_cvref_t<decltype(to_example)> to{};
        HR_ENFORCE(Convert(from, &to), TypeMismatch, "expected ", AttributeTypeName(like), ", got ", ToString(value),
                   " (", AttributeTypeName(value), ")");
        return to;
      },
      value, like);
}

}  // namespace headrace
