#ifndef RECSYS_WIRE_CURSOR_H_
#define RECSYS_WIRE_CURSOR_H_

#include <cstdint>
#include <string_view>

namespace recsys {

/// How a field's value is encoded in protobuf's wire format.
enum class WireType : std::uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

/// Returns the number that precedes a field's value.
constexpr std::uint32_t Tag(std::uint32_t field, WireType type) {
  return field << 3 | static_cast<std::uint32_t>(type);
}
constexpr std::uint32_t VarintTag(std::uint32_t field) { return Tag(field, WireType::kVarint); }
constexpr std::uint32_t DelimitedTag(std::uint32_t field) {
  return Tag(field, WireType::kDelimited);
}

/// Reads the fields of one protobuf message in place: copies and allocates nothing, reads no byte
/// beyond the message, and rejects what Python's protobuf rejects.
///
///     while (cursor.Next()) {
///       switch (cursor.tag()) {
///         case DelimitedTag(1): name = cursor.ReadText(); break;
///         default: cursor.Skip();
///       }
///     }
///     return cursor.ok();
///
/// Each field must be read or skipped exactly once, according to its tag. A malformed message ends
/// the loop with ok() false; values read before that are meaningless.
class Cursor {
 public:
  explicit Cursor(std::string_view message) : Cursor(message, kMaxDepth) {}

  /// Moves to the next field; returns false at the end of the message, or if it is malformed.
  bool Next();
  std::uint32_t tag() const { return tag_; }
  /// Whether everything read so far was well-formed.
  bool ok() const { return !failed_; }

  /// The unread rest of the message.
  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }

  std::uint64_t ReadVarint();
  std::uint32_t ReadFixed32();
  std::uint64_t ReadFixed64();
  std::string_view ReadBytes();
  /// Reads a proto3 string, which must be UTF-8.
  std::string_view ReadText();
  /// Returns a cursor over a nested message. Pass it to Leave when done.
  Cursor Enter();
  void Leave(const Cursor& inner) {
    if (!inner.ok()) Fail();
  }
  /// Skips the field, of any type.
  void Skip();
  /// Marks the message as invalid: ends the loop.
  void Fail() {
    failed_ = true;
    at_ = end_;
  }

 private:
  /// Maximum depth of nested messages and groups, the same as protobuf's.
  static constexpr int kMaxDepth = 100;

  Cursor(std::string_view message, int depth)
      : at_(message.data()), end_(message.data() + message.size()), depth_(depth) {}
  std::uint64_t ReadLongVarint(int max_bytes);
  std::uint32_t ReadTag();
  void SkipBytes(std::size_t num_bytes);
  void SkipGroup();
  void SkipValue(WireType type);

  const char* at_;
  const char* end_;
  std::uint32_t tag_ = 0;
  int depth_;
  bool failed_ = false;
};

/// Whether `packed` consists of whole varints, up to its last byte.
bool AreVarints(std::string_view packed);

/// Removes the first number from a packed field that AreVarints has accepted.
std::uint64_t TakeVarint(std::string_view* packed);

inline bool Cursor::Next() {
  if (at_ == end_) return false;
  tag_ = ReadTag();
  const bool is_field =
      tag_ >> 3 != 0 && (tag_ & 7) != static_cast<std::uint32_t>(WireType::kEndGroup);
  if (!is_field) Fail();
  return is_field;
}

inline std::uint64_t Cursor::ReadVarint() {
  if (at_ != end_ && static_cast<unsigned char>(*at_) < 0x80) {
    return static_cast<unsigned char>(*at_++);
  }
  return ReadLongVarint(10);
}

inline std::uint32_t Cursor::ReadTag() {
  if (at_ != end_ && static_cast<unsigned char>(*at_) < 0x80) {
    return static_cast<unsigned char>(*at_++);
  }
  const std::uint64_t tag = ReadLongVarint(5);
  if (tag > 0xFFFFFFFF) Fail();
  return failed_ ? 0 : static_cast<std::uint32_t>(tag);
}

/// Takes the first value of a repeated bytes field off a message that has one.
template <std::uint32_t kField>
std::string_view TakeField(std::string_view* message) {
  std::string_view text;
  Cursor cursor(*message);
  while (cursor.Next()) {
    if (cursor.tag() == DelimitedTag(kField)) {
      text = cursor.ReadBytes();
      break;
    }
    cursor.Skip();
  }
  *message = cursor.rest();
  return text;
}

// Messages read by a list of their fields:
//
//     ReadFields(&cursor, Text(1, &input.name), Data(2, &input.values));

/// One field of a message: its tag, and the function that reads its value.
template <typename Take>
struct FieldReader {
  std::uint32_t tag;
  Take take;
};
template <typename Take>
FieldReader(std::uint32_t, Take) -> FieldReader<Take>;

/// Reads these fields of a message and skips all others.
template <typename... Takes>
void ReadFields(Cursor* cursor, const FieldReader<Takes>&... fields) {
  while (cursor->Next()) {
    const std::uint32_t tag = cursor->tag();
    const bool is_read = ((tag == fields.tag && (fields.take(cursor), true)) || ...);
    if (!is_read) cursor->Skip();
  }
}

/// `To`: std::string or std::string_view.
template <typename To>
auto Text(std::uint32_t number, To* to) {
  return FieldReader{DelimitedTag(number), [to](Cursor* cursor) { *to = cursor->ReadText(); }};
}

inline auto Data(std::uint32_t number, std::string_view* to) {
  return FieldReader{DelimitedTag(number), [to](Cursor* cursor) { *to = cursor->ReadBytes(); }};
}

/// `To`: an integer, or an optional one. Like protobuf, a shorter integer gets the lower bits.
/// `As`: the type on the wire, if it is shorter.
template <typename As = std::int64_t, typename To>
auto Int(std::uint32_t number, To* to) {
  return FieldReader{VarintTag(number), [to](Cursor* cursor) {
                       *to = static_cast<To>(static_cast<As>(cursor->ReadVarint()));
                     }};
}

/// A nested message, which `read` reads.
template <typename Read>
auto Nested(std::uint32_t number, Read read) {
  return FieldReader{DelimitedTag(number), [read](Cursor* cursor) {
                       Cursor inner = cursor->Enter();
                       read(&inner);
                       cursor->Leave(inner);
                     }};
}

}  // namespace recsys

#endif  // RECSYS_WIRE_CURSOR_H_
