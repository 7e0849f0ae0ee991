#include "wire/writer.h"

#include "wire/cursor.h"

namespace recsys {

std::size_t VarintSize(std::uint64_t number) {
  std::size_t num_bytes = 1;
  for (; number > 0x7F; number >>= 7) ++num_bytes;
  return num_bytes;
}

std::size_t DelimitedSize(std::uint32_t field, std::size_t num_bytes) {
  return VarintSize(DelimitedTag(field)) + VarintSize(num_bytes) + num_bytes;
}

std::size_t BytesSize(std::uint32_t field, std::size_t num_bytes) {
  return num_bytes == 0 ? 0 : DelimitedSize(field, num_bytes);
}

void AppendVarint(std::uint64_t number, std::string* out) {
  for (; number > 0x7F; number >>= 7) *out += static_cast<char>((number & 0x7F) | 0x80);
  *out += static_cast<char>(number);
}

void AppendHead(std::uint32_t field, std::size_t num_bytes, std::string* out) {
  AppendVarint(DelimitedTag(field), out);
  AppendVarint(num_bytes, out);
}

void AppendNumber(std::uint32_t field, std::uint64_t number, std::string* out) {
  if (number == 0) return;
  AppendVarint(VarintTag(field), out);
  AppendVarint(number, out);
}

void AppendBytes(std::uint32_t field, std::string_view value, std::string* out) {
  if (value.empty()) return;
  AppendHead(field, value.size(), out);
  out->append(value);
}

void Writer::VarintField(std::uint32_t field, std::uint64_t number) {
  Varint(VarintTag(field));
  Varint(number);
}

void Writer::Delimited(std::uint32_t field, std::string_view value) {
  DelimitedHead(field, value.size());
  text_.append(value);
}

void Writer::Values(std::string_view values, const std::shared_ptr<const void>& owner) {
  if (values.size() < kMinReferenced) {
    text_.append(values);
    return;
  }
  Flush();
  message_.parts.push_back({values, owner});
}

void Writer::Parts(Message message) {
  for (Bytes& part : message.parts) {
    if (part.view.size() < kMinReferenced) {
      text_.append(part.view);
    } else {
      Flush();
      message_.parts.push_back(std::move(part));
    }
  }
}

Message Writer::Finish() {
  if (message_.parts.empty() || !text_.empty()) {
    message_.parts.push_back(Bytes::Of(std::move(text_)));
    text_.clear();
  }
  return std::move(message_);
}

void Writer::Flush() {
  if (text_.empty()) return;
  message_.parts.push_back(Bytes::Of(std::move(text_)));
  text_.clear();
}

std::size_t ShapeSize(std::int64_t num_rows, const Output& output) {
  std::size_t num_bytes = 0;
  output.ForEachSize(num_rows, [&](std::int64_t size) {
    num_bytes += VarintSize(static_cast<std::uint64_t>(size));
  });
  return num_bytes;
}

void WriteShape(std::uint32_t field, std::int64_t num_rows, const Output& output, Writer* writer) {
  writer->DelimitedHead(field, ShapeSize(num_rows, output));
  output.ForEachSize(num_rows,
                     [&](std::int64_t size) { writer->Varint(static_cast<std::uint64_t>(size)); });
}

}  // namespace recsys
