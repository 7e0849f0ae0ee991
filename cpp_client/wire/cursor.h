#ifndef RECSYS_WIRE_CURSOR_H_
#define RECSYS_WIRE_CURSOR_H_

#include <cstdint>
#include <string_view>

namespace recsys {

/// How a field's value stands on protobuf's wire.
enum class WireType : std::uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

/// What stands before a field's value.
constexpr std::uint32_t Tag(std::uint32_t field, WireType type) {
  return field << 3 | static_cast<std::uint32_t>(type);
}
constexpr std::uint32_t VarintTag(std::uint32_t field) { return Tag(field, WireType::kVarint); }
constexpr std::uint32_t DelimitedTag(std::uint32_t field) {
  return Tag(field, WireType::kDelimited);
}

/// Reads the fields of one protobuf message in place: nothing is copied or allocated, no byte
/// beyond the message is looked at, and what Python's protobuf refuses is refused.
///
///     while (cursor.Next()) {
///       switch (cursor.tag()) {
///         case DelimitedTag(1): name = cursor.ReadText(); break;
///         default: cursor.Skip();
///       }
///     }
///     return cursor.ok();
///
/// Each field must be read or skipped once, by what its tag says. What is no message ends the loop
/// with ok() false; values that were read before then mean nothing.
class Cursor {
 public:
  explicit Cursor(std::string_view message) : Cursor(message, kMaxDepth) {}

  /// Moves to the next field; false at the message's end, or where it is none.
  bool Next();
  std::uint32_t tag() const { return tag_; }
  /// Whether all that was read so far was well-formed.
  bool ok() const { return !failed_; }

  /// What was not read yet.
  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }

  std::uint64_t ReadVarint();
  std::uint32_t ReadFixed32();
  std::uint64_t ReadFixed64();
  std::string_view ReadBytes();
  /// A string of proto3, which must be UTF-8.
  std::string_view ReadText();
  /// A cursor over a message within this one. Leave must be told of it when it is done.
  Cursor Enter();
  void Leave(const Cursor& inner) {
    if (!inner.ok()) Fail();
  }
  /// Passes over the field, whatever it is.
  void Skip();
  /// Says that what was read cannot be: ends the loop.
  void Fail() {
    failed_ = true;
    at_ = end_;
  }

 private:
  /// Of messages and groups within each other, as many as protobuf takes.
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

/// Whether numbers of a packed field, one after the other, fill `packed` to its last byte.
bool AreVarints(std::string_view packed);

/// Takes one number off the front of a packed field that AreVarints has passed.
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

}  // namespace recsys

#endif  // RECSYS_WIRE_CURSOR_H_
