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

/// A request's own rows of a batch's outputs, as answers are written from them: for each output its
/// little-endian float32, row-major [num_rows, *shape]. The views live as long as `owner`.
struct AnswerRows {
  std::int64_t num_rows;
  const std::vector<std::string_view>& values;
  const std::shared_ptr<const void>& owner;
};

/// How many bytes a number takes.
std::size_t VarintSize(std::uint64_t number);
/// How many bytes a length-delimited field of so many bytes takes, with its tag and length.
std::size_t DelimitedSize(std::uint32_t field, std::size_t num_bytes);

/// A number, seven bits a byte, the lowest first.
void AppendVarint(std::uint64_t number, std::string* out);
/// Tag and length: what follows is the field's value, of so many bytes.
void AppendHead(std::uint32_t field, std::size_t num_bytes, std::string* out);
/// Fields that are not repeated: nothing for proto3's default, an empty value or 0.
void AppendNumber(std::uint32_t field, std::uint64_t number, std::string* out);
void AppendBytes(std::uint32_t field, std::string_view value, std::string* out);
/// How many bytes AppendBytes adds.
std::size_t BytesSize(std::uint32_t field, std::size_t num_bytes);

/// Writes a message, field by field, into one run of bytes. Large values may be left where they
/// lie: then the message has parts.
class Writer {
 public:
  /// Values of `min_referenced` bytes and more, given with an owner, are not copied: below it a
  /// copy is quicker, and a small answer must not keep the memory of a large batch.
  static constexpr std::size_t kMinReferenced = 32 << 10;

  Writer() = default;
  explicit Writer(std::size_t num_bytes) { text_.reserve(num_bytes); }

  void Varint(std::uint64_t number) { AppendVarint(number, &text_); }
  void VarintField(std::uint32_t field, std::uint64_t number);
  void DelimitedHead(std::uint32_t field, std::size_t num_bytes) {
    AppendHead(field, num_bytes, &text_);
  }
  void Delimited(std::uint32_t field, std::string_view value);
  /// The same, but nothing where it is empty: a proto3 field that is not repeated.
  void Text(std::uint32_t field, std::string_view value) { AppendBytes(field, value, &text_); }
  /// Bytes that live as long as `owner` does.
  void Values(std::string_view values, const std::shared_ptr<const void>& owner);
  /// What another wrote.
  void Parts(Message message);

  /// All that was written.
  Message Finish();

 private:
  void Flush();

  std::string text_;
  Message message_;
};

/// What a packed field [num_rows, *shape] holds.
std::size_t ShapeSize(std::int64_t num_rows, const Output& output);
void WriteShape(std::uint32_t field, std::int64_t num_rows, const Output& output, Writer* writer);

}  // namespace recsys

#endif  // RECSYS_WIRE_WRITER_H_
