// Names of slots and attributes that are found by number.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace headrace {

// A name with its hash, which is a constant if the name is a literal. Look-ups of kernels, step after step, are
// found by comparing hashes; OpRegistry::Register refuses an operator two of whose names share one. Refers to the text
// that it was made from. Small enough to be passed in registers.
class HashedName {
 public:
  // A literal, or a char array, whose text ends at the first '\0'.
  template <size_t N>
  [[gnu::always_inline]] constexpr HashedName(const char (&text)[N])  // NOLINT(google-explicit-constructor)
      : text_(text),
        size_(SizeOfEach(text, std::make_index_sequence<N - 1>())),
        hash_(ExtendByEach(text, std::make_index_sequence<N - 1>())) {}
  constexpr HashedName(std::string_view text)  // NOLINT(google-explicit-constructor)
      : text_(text.data()), size_(static_cast<uint32_t>(text.size())), hash_(Extend(kBasis, text)) {}
  HashedName(const std::string& text)  // NOLINT(google-explicit-constructor)
      : HashedName(std::string_view(text)) {}
  template <std::same_as<const char*> Text>
  constexpr HashedName(Text text)  // NOLINT(google-explicit-constructor)
      : HashedName(std::string_view(text)) {}

  // The name of the slot that holds the gradient of this one, which is not the gradient of another.
  constexpr HashedName Gradient() const {
    HashedName gradient = *this;
    gradient.size_ |= kIsGradient;
    gradient.hash_ = Extend(hash_, kGradSuffix);
    return gradient;
  }

  constexpr uint32_t hash() const { return hash_; }
  constexpr bool empty() const { return size_ == 0; }
  std::string ToString() const {
    return std::string(text_, size_ & ~kIsGradient).append((size_ & kIsGradient) != 0 ? kGradSuffix : "");
  }

  friend constexpr bool operator==(const HashedName& a, const HashedName& b) { return a.hash_ == b.hash_; }
  friend std::ostream& operator<<(std::ostream& out, const HashedName& name) { return out << name.ToString(); }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  static constexpr std::string_view kGradSuffix = "@GRAD";
  static constexpr uint32_t kIsGradient = uint32_t{1} << 31;

  // FNV-1a, 32 bits: http://www.isthe.com/chongo/tech/comp/fnv/.
  static constexpr uint32_t kBasis = 0x811c9dc5;
  static constexpr uint32_t kPrime = 0x01000193;
  static constexpr uint32_t Extend(uint32_t hash, std::string_view text) {
    for (const char c : text) {
      hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
    }
    return hash;
  }
  // The same without a loop, which compilers fold to a constant. Names hold no '\0', so nothing follows one.
  template <size_t... I>
  [[gnu::always_inline]] static constexpr uint32_t ExtendByEach(const char* text, std::index_sequence<I...>) {
    uint32_t hash = kBasis;
    (void)((text[I] == '\0' || (hash = (hash ^ static_cast<unsigned char>(text[I])) * kPrime, false)) || ...);
    return hash;
  }
  template <size_t... I>
  [[gnu::always_inline]] static constexpr uint32_t SizeOfEach(const char* text, std::index_sequence<I...>) {
    uint32_t size = 0;
    (void)((text[I] == '\0' || (++size, false)) || ...);
    return size;
  }

  const char* text_;
  uint32_t size_;  // of the text; kIsGradient: kGradSuffix follows
  uint32_t hash_;
};

using HashedNames = std::initializer_list<HashedName>;

}  // namespace headrace
