#ifndef RECSYS_WIRE_WRITER_H_
#define RECSYS_WIRE_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "recsys/signature.h"

namespace recsys {

/// One request's rows of a batch's outputs, from which its answer is written: per output its
/// numbers, little-endian, row-major [num_rows, *shape]. The views are valid as long as `owner`
/// lives.
struct AnswerRows {
  std::int64_t num_rows;
  const std::vector<std::string_view>& values;
  const std::shared_ptr<const void>& owner;
};

/// Returns the encoded size of a number in bytes.
std::size_t VarintSize(std::uint64_t number);
/// Returns the size of a length-delimited field with `num_bytes` of value, including tag and
/// length.
std::size_t DelimitedSize(std::uint32_t field, std::size_t num_bytes);

/// Appends a varint: seven bits per byte, lowest first.
void AppendVarint(std::uint64_t number, std::string* out);
/// Appends tag and length; a value of `num_bytes` must follow.
void AppendHead(std::uint32_t field, std::size_t num_bytes, std::string* out);
/// Append singular fields: nothing for proto3's default, an empty value or 0.
void AppendNumber(std::uint32_t field, std::uint64_t number, std::string* out);
void AppendBytes(std::uint32_t field, std::string_view value, std::string* out);
/// Returns the number of bytes that AppendBytes adds.
std::size_t BytesSize(std::uint32_t field, std::size_t num_bytes);

/// Writes a message field by field into one buffer. Large values may be referenced instead of
/// copied: then the message has several parts.
class Writer {
 public:
  /// Values of at least this size, given with an owner, are not copied: below it a copy is faster,
  /// and a small answer must not keep a large batch's memory alive.
  static constexpr std::size_t kMinReferenced = 32 << 10;

  Writer() = default;
  explicit Writer(std::size_t num_bytes) { text_.reserve(num_bytes); }

  void Varint(std::uint64_t number) { AppendVarint(number, &text_); }
  void VarintField(std::uint32_t field, std::uint64_t number);
  void DelimitedHead(std::uint32_t field, std::size_t num_bytes) {
    AppendHead(field, num_bytes, &text_);
  }
  void Delimited(std::uint32_t field, std::string_view value);
  /// Like Delimited, but writes nothing if the value is empty: a singular proto3 field.
  void Text(std::uint32_t field, std::string_view value) { AppendBytes(field, value, &text_); }
  /// Bytes that stay valid as long as `owner` lives.
  void Values(std::string_view values, const std::shared_ptr<const void>& owner);
  /// Appends a message written elsewhere.
  void Parts(Message message);

  /// Returns the whole message.
  Message Finish();

 private:
  void Flush();

  std::string text_;
  Message message_;
};

/// Returns the size of a packed field with the shape of an output for a number of rows.
std::size_t ShapeSize(std::int64_t num_rows, const Output& output);
void WriteShape(std::uint32_t field, std::int64_t num_rows, const Output& output, Writer* writer);

}  // namespace recsys

#endif  // RECSYS_WIRE_WRITER_H_
