// Shapes. A dimension of -1 is unknown until run time; it appears in programs and in queue declarations, never in a
// tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "framework/export.h"

namespace headrace {

// The extents of a tensor, first to last: a sequence like a std::vector<int64_t>, converted from and to one. Up to
// kInline of them need no memory of their own.
class HEADRACE_API DDim {
 public:
  static constexpr size_t kInline = 6;

  using value_type = int64_t;
  using size_type = size_t;
  using difference_type = std::ptrdiff_t;
  using reference = int64_t&;
  using const_reference = const int64_t&;
  using iterator = int64_t*;
  using const_iterator = const int64_t*;
  using reverse_iterator = std::reverse_iterator<iterator>;
  using const_reverse_iterator = std::reverse_iterator<const_iterator>;

  DDim() = default;
  DDim(std::initializer_list<int64_t> dims) { assign(dims.begin(), dims.end()); }
  explicit DDim(size_t n, int64_t value = 0) { resize(n, value); }
  template <std::input_iterator Iterator>
  DDim(Iterator first, Iterator last) {
    assign(first, last);
  }
  DDim(const std::vector<int64_t>& dims) { assign(dims.begin(), dims.end()); }  // NOLINT(google-explicit-constructor)
  DDim(const DDim& other) { assign(other.begin(), other.end()); }
  DDim(DDim&& other) noexcept { Take(other); }
  DDim& operator=(const DDim& other) {
    if (this != &other) {
      assign(other.begin(), other.end());
    }
    return *this;
  }
  DDim& operator=(DDim&& other) noexcept {
    if (this != &other) {
      Release();
      Take(other);
    }
    return *this;
  }
  ~DDim() { Release(); }

  operator std::vector<int64_t>() const { return {begin(), end()}; }  // NOLINT(google-explicit-constructor)

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t* data() { return data_; }
  const int64_t* data() const { return data_; }
  int64_t& operator[](size_t i) { return data_[i]; }
  const int64_t& operator[](size_t i) const { return data_[i]; }
  int64_t& front() { return data_[0]; }
  const int64_t& front() const { return data_[0]; }
  int64_t& back() { return data_[size_ - 1]; }
  const int64_t& back() const { return data_[size_ - 1]; }

  iterator begin() { return data_; }
  iterator end() { return data_ + size_; }
  const_iterator begin() const { return data_; }
  const_iterator end() const { return data_ + size_; }
  reverse_iterator rbegin() { return reverse_iterator(end()); }
  reverse_iterator rend() { return reverse_iterator(begin()); }
  const_reverse_iterator rbegin() const { return const_reverse_iterator(end()); }
  const_reverse_iterator rend() const { return const_reverse_iterator(begin()); }

  void clear() { size_ = 0; }
  void reserve(size_t capacity) {
    if (capacity > capacity_) {
      Grow(capacity);
    }
  }
  void resize(size_t n, int64_t value = 0) {
    reserve(n);
    for (; size_ < n; ++size_) {
      data_[size_] = value;
    }
    size_ = n;
  }
  void push_back(int64_t value) {
    reserve(size_ + 1);
    data_[size_++] = value;
  }
  void pop_back() { --size_; }
  void assign(size_t n, int64_t value) {
    clear();
    resize(n, value);
  }
  // The range must not be part of this.
  template <std::input_iterator Iterator>
  void assign(Iterator first, Iterator last) {
    clear();
    for (; first != last; ++first) {
      push_back(static_cast<int64_t>(*first));
    }
  }
  iterator insert(const_iterator position, int64_t value) { return insert(position, size_t{1}, value); }
  iterator insert(const_iterator position, size_t n, int64_t value) {
    iterator gap = OpenGap(position, n);
    std::fill_n(gap, n, value);
    return gap;
  }
  // The range must not be part of this.
  template <std::forward_iterator Iterator>
  iterator insert(const_iterator position, Iterator first, Iterator last) {
    iterator gap = OpenGap(position, static_cast<size_t>(std::distance(first, last)));
    std::copy(first, last, gap);
    return gap;
  }
  iterator erase(const_iterator position) { return erase(position, position + 1); }
  iterator erase(const_iterator first, const_iterator last) {
    iterator to = begin() + (first - begin());
    size_ = static_cast<size_t>(std::copy(begin() + (last - begin()), end(), to) - begin());
    return to;
  }

  friend bool operator==(const DDim& a, const DDim& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  friend struct AbiLayout;     // see op_library_abi.h
  void Grow(size_t capacity);  // to at least `capacity`
  void Release() {
    if (data_ != inline_) {
      FreeData();
    }
  }
  void FreeData();

  // After Release or at construction.
  void Take(DDim& other) noexcept {
    size_ = other.size_;
    if (other.data_ == other.inline_) {
      data_ = inline_;
      capacity_ = kInline;
      std::copy_n(other.inline_, size_, inline_);
    } else {
      data_ = other.data_;
      capacity_ = other.capacity_;
      other.data_ = other.inline_;
      other.capacity_ = kInline;
    }
    other.size_ = 0;
  }

  iterator OpenGap(const_iterator position, size_t n) {
    const std::ptrdiff_t offset = position - begin();
    resize(size_ + n);
    iterator gap = begin() + offset;
    std::copy_backward(gap, end() - n, end());
    return gap;
  }

  int64_t* data_ = inline_;
  size_t size_ = 0;
  size_t capacity_ = kInline;
  int64_t inline_[kInline];
};

// Number of elements; 1 for a scalar. Throws InvalidArgument if a dimension is negative or if the product of those that
// are not 0 overflows, so that the product of any of them is safe.
HEADRACE_API int64_t Product(const DDim& dims);

// Throws InvalidArgument unless every dimension is -1 or more and the product of the positive ones fits an int64.
HEADRACE_API void CheckDims(const DDim& dims);

// a + b and a · b of extents, both 0 or more. Throw InvalidArgument if the result does not fit an int64.
HEADRACE_API int64_t AddExtents(int64_t a, int64_t b);
HEADRACE_API int64_t MultiplyExtents(int64_t a, int64_t b);

// "[32, 1, 28, 28]".
HEADRACE_API std::string ToString(const DDim& dims);

// Whether `actual` fits `declared`: the same rank, and the same extent wherever `declared` is not -1.
HEADRACE_API bool Matches(const DDim& declared, const DDim& actual);

}  // namespace headrace
