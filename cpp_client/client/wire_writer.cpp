#include "client/wire_writer.h"

namespace recsys::client {
namespace {

constexpr int kVarint = 0;
constexpr int kLengthDelimited = 2;

std::uint64_t Tag(int field, int type) {
  return static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type);
}

std::size_t SizeOfVarint(std::uint64_t value) {
  std::size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

}  // namespace

void PutVarint(std::uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>((value & 0x7f) | 0x80));
  out->push_back(static_cast<char>(value));
}

void PutNumber(int field, std::uint64_t value, std::string* out) {
  if (value == 0) return;
  PutVarint(Tag(field, kVarint), out);
  PutVarint(value, out);
}

void PutHead(int field, std::size_t size, std::string* out) {
  PutVarint(Tag(field, kLengthDelimited), out);
  PutVarint(size, out);
}

void PutBytes(int field, std::string_view bytes, std::string* out) {
  if (bytes.empty()) return;
  PutHead(field, bytes.size(), out);
  out->append(bytes);
}

std::size_t SizeOfBytes(int field, std::size_t size) {
  if (size == 0) return 0;
  return SizeOfVarint(Tag(field, kLengthDelimited)) + SizeOfVarint(size) + size;
}

}  // namespace recsys::client
