#ifndef RECSYS_SPAN_H_
#define RECSYS_SPAN_H_

#include <cstddef>
#include <type_traits>
#include <vector>

namespace recsys {

/// A view of contiguous values owned elsewhere. (std::span comes with C++20.)
template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, std::size_t size) : data_(data), size_(size) {}
  // Implicit, like std::span's constructor: values usually come from a vector.
  Span(std::vector<std::remove_const_t<T>>& values)  // NOLINT(google-explicit-constructor)
      : Span(values.data(), values.size()) {}
  template <typename U = T, typename = std::enable_if_t<std::is_const_v<U>>>
  Span(const std::vector<std::remove_const_t<T>>& values)  // NOLINT(google-explicit-constructor)
      : Span(values.data(), values.size()) {}

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](std::size_t at) const { return data_[at]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_SPAN_H_
