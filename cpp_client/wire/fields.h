#ifndef RECSYS_WIRE_FIELDS_H_
#define RECSYS_WIRE_FIELDS_H_

// Messages read by a list of their fields:
//
//     ReadFields(&cursor, Text(1, &input.name), Data(2, &input.values));

#include <cstdint>
#include <string_view>

#include "wire/cursor.h"

namespace recsys {

/// One field of a message: its tag, and the function that reads its value.
template <typename Take>
struct Field {
  std::uint32_t tag;
  Take take;
};
template <typename Take>
Field(std::uint32_t, Take) -> Field<Take>;

/// Reads these fields of a message and skips all others.
template <typename... Takes>
void ReadFields(Cursor* cursor, const Field<Takes>&... fields) {
  while (cursor->Next()) {
    const std::uint32_t tag = cursor->tag();
    const bool is_read = ((tag == fields.tag && (fields.take(cursor), true)) || ...);
    if (!is_read) cursor->Skip();
  }
}

/// `To`: std::string or std::string_view.
template <typename To>
auto Text(std::uint32_t number, To* to) {
  return Field{DelimitedTag(number), [to](Cursor* cursor) { *to = cursor->ReadText(); }};
}

inline auto Data(std::uint32_t number, std::string_view* to) {
  return Field{DelimitedTag(number), [to](Cursor* cursor) { *to = cursor->ReadBytes(); }};
}

/// `To`: an integer, or an optional one. Like protobuf, a shorter integer gets the lower bits.
/// `As`: the type on the wire, if it is shorter.
template <typename As = std::int64_t, typename To>
auto Int(std::uint32_t number, To* to) {
  return Field{VarintTag(number), [to](Cursor* cursor) {
                 *to = static_cast<To>(static_cast<As>(cursor->ReadVarint()));
               }};
}

/// A nested message, which `read` reads.
template <typename Read>
auto Nested(std::uint32_t number, Read read) {
  return Field{DelimitedTag(number), [read](Cursor* cursor) {
                 Cursor inner = cursor->Enter();
                 read(&inner);
                 cursor->Leave(inner);
               }};
}

}  // namespace recsys

#endif  // RECSYS_WIRE_FIELDS_H_
