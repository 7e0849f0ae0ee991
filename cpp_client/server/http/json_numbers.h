#ifndef RECSYS_SERVER_HTTP_JSON_NUMBERS_H_
#define RECSYS_SERVER_HTTP_JSON_NUMBERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/json_value.h"
#include "wire/owned_bytes.h"

namespace recsys {

/// Types of numbers that requests are made of.
enum class NumberType { kFloat32, kInt64, kInt32 };

/// Entries of lists, in their order.
using JsonEntries = std::vector<const JsonValue*>;

/// The innermost entries of nested lists, and how many lists there are at each level. Throws Error:
/// lists of a level differ in length. `field`: what error texts call it.
struct FlatList {
  JsonEntries entries;
  std::vector<std::int64_t> shape;
};
FlatList Flat(const std::string& field, const JsonValue::List& list);

/// Little-endian numbers of a type; never rounds an ID. What float32 cannot hold becomes infinite.
/// Throws Error: there is something else than numbers, or one that the type cannot hold.
std::string_view Pack(const std::string& field, const JsonEntries& entries, NumberType type,
                      OwnedBytes* owned);

/// "[1, 2]", as Python prints a list; of long ones the first eight.
std::string ListText(const std::vector<std::int64_t>& numbers);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_JSON_NUMBERS_H_
