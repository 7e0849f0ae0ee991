#ifndef RECSYS_REST_JSON_VALUES_H_
#define RECSYS_REST_JSON_VALUES_H_

#include <cstddef>
#include <string>

namespace recsys {

/// Longer IDs of requests are left to Python, which refuses them.
constexpr std::size_t kMostBytesOfId = 128;

/// Appends the bytes of a number.
template <typename Value>
void AppendValue(const Value& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace recsys

#endif  // RECSYS_REST_JSON_VALUES_H_
