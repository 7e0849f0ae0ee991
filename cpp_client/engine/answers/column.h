#ifndef RECSYS_ENGINE_ANSWERS_COLUMN_H_
#define RECSYS_ENGINE_ANSWERS_COLUMN_H_

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

namespace recsys {

/// Bytes that grow at their end: the numbers of one column, aligned as malloc aligns. Not
/// thread-safe.
class Column {
 public:
  /// Throws std::bad_alloc; then nothing has changed.
  void Append(const void* from, std::size_t num_bytes) {
    if (num_bytes == 0) return;
    std::memcpy(Grow(num_bytes), from, num_bytes);
  }

  void Append(std::string_view bytes) { Append(bytes.data(), bytes.size()); }

  template <typename Number>
  void Push(Number number) {
    std::memcpy(Grow(sizeof(number)), &number, sizeof(number));
  }

  /// Appends that many copies of a byte.
  void Fill(std::size_t num_bytes, char byte) {
    if (num_bytes > 0) std::memset(Grow(num_bytes), byte, num_bytes);
  }

  /// Appends uninitialised bytes and returns where they begin; valid until the column grows.
  char* Grow(std::size_t num_bytes) {
    if (num_bytes > capacity_ - size_) Reserve(size_ + num_bytes);
    char* const at = data_.get() + size_;
    size_ += num_bytes;
    return at;
  }

  /// Forgets the bytes and keeps the memory.
  void Clear() { size_ = 0; }

  const char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };

  // Rare: apart from the rest, which is short enough to be inlined.
  [[gnu::noinline]] void Reserve(std::size_t at_least) {
    constexpr std::size_t kFirstBytes = 256;
    const std::size_t capacity = std::max({at_least, 2 * capacity_, kFirstBytes});
    // Large blocks are moved by the kernel, without a copy.
    void* const data = std::realloc(data_.get(), capacity);
    if (data == nullptr) throw std::bad_alloc();
    static_cast<void>(data_.release());
    data_.reset(static_cast<char*>(data));
    capacity_ = capacity;
  }

  std::unique_ptr<char, Free> data_;
  std::size_t size_ = 0, capacity_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ANSWERS_COLUMN_H_
