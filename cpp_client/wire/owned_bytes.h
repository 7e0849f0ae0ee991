#ifndef RECSYS_WIRE_OWNED_BYTES_H_
#define RECSYS_WIRE_OWNED_BYTES_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace recsys {

/// Additional bytes that a request needs, such as IDs converted to another type: their addresses
/// stay valid for the lifetime of this object. Not thread-safe.
class OwnedBytes {
 public:
  /// Returns uninitialized memory; never null.
  char* Add(std::size_t num_bytes) {
    pieces_.emplace_back(new char[num_bytes > 0 ? num_bytes : 1]);
    return pieces_.back().get();
  }
  void Clear() { pieces_.clear(); }

 private:
  std::vector<std::unique_ptr<char[]>> pieces_;
};

/// Reads a number of the wire: little-endian like this machine, possibly unaligned.
template <typename T>
T LoadAt(std::string_view data, std::size_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return value;
}

/// Converts the numbers of `data` from type From to a type that can hold them.
template <typename From, typename To>
std::string_view Converted(std::string_view data, OwnedBytes* owned) {
  const std::size_t count = data.size() / sizeof(From);
  char* const made = owned->Add(count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    const To value = static_cast<To>(LoadAt<From>(data, i));
    std::memcpy(made + i * sizeof(To), &value, sizeof(To));
  }
  return {made, count * sizeof(To)};
}

}  // namespace recsys

#endif  // RECSYS_WIRE_OWNED_BYTES_H_
