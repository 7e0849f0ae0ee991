#include "wire/cursor.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace recsys {
namespace {

// protobuf rejects longer values, whatever follows.
constexpr std::uint64_t kMaxDelimited = 0x7FFFFFFF;

/// Reads a number of the wire, which is little-endian like this machine (the build checks it).
template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool IsAscii(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    if ((Load<std::uint64_t>(text.data() + at) & kHighBits) != 0) return false;
  }
  unsigned char rest = 0;
  for (; at < text.size(); ++at) rest |= static_cast<unsigned char>(text[at]);
  return rest < 0x80;
}

}  // namespace

std::uint64_t Cursor::ReadLongVarint(int max_bytes) {
  std::uint64_t value = 0;
  const int num_bytes = static_cast<int>(std::min<std::ptrdiff_t>(max_bytes, end_ - at_));
  for (int i = 0; i < num_bytes; ++i) {
    const std::uint64_t byte = static_cast<unsigned char>(at_[i]);
    value |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      at_ += i + 1;
      return value;
    }
  }
  Fail();
  return 0;
}

std::uint32_t Cursor::ReadFixed32() {
  const char* start = at_;
  SkipBytes(4);
  return failed_ ? 0 : Load<std::uint32_t>(start);
}

std::uint64_t Cursor::ReadFixed64() {
  const char* start = at_;
  SkipBytes(8);
  return failed_ ? 0 : Load<std::uint64_t>(start);
}

std::string_view Cursor::ReadBytes() {
  std::uint64_t size = 0;
  if (at_ != end_ && static_cast<unsigned char>(*at_) < 0x80) {
    size = static_cast<unsigned char>(*at_++);
  } else {
    size = ReadLongVarint(5);
  }
  if (size > kMaxDelimited || size > static_cast<std::uint64_t>(end_ - at_)) Fail();
  if (failed_) return {};
  const std::string_view bytes(at_, size);
  at_ += size;
  return bytes;
}

std::string_view Cursor::ReadText() {
  const std::string_view text = ReadBytes();
  if (!IsAscii(text) && !IsUtf8(text)) Fail();
  return text;
}

Cursor Cursor::Enter() {
  Cursor inner(ReadBytes(), depth_ - 1);
  if (inner.depth_ < 0) inner.Fail();
  return inner;
}

void Cursor::Skip() {
  const auto type = static_cast<WireType>(tag_ & 7);
  if (type == WireType::kStartGroup) {
    SkipGroup();
  } else {
    SkipValue(type);
  }
}

void Cursor::SkipBytes(std::size_t num_bytes) {
  if (num_bytes > static_cast<std::size_t>(end_ - at_)) {
    Fail();
  } else {
    at_ += num_bytes;
  }
}

void Cursor::SkipValue(WireType type) {
  switch (type) {
    case WireType::kVarint:
      ReadVarint();
      break;
    case WireType::kFixed64:
      SkipBytes(8);
      break;
    case WireType::kDelimited:
      ReadBytes();
      break;
    case WireType::kFixed32:
      SkipBytes(4);
      break;
    default:
      Fail();
  }
}

// A loop instead of a recursion: keeps the field numbers of the open groups, at most kMaxDepth.
void Cursor::SkipGroup() {
  std::uint32_t open[kMaxDepth];
  int num_open = 0;
  std::uint32_t tag = tag_;
  for (;;) {
    const auto type = static_cast<WireType>(tag & 7);
    if (type == WireType::kStartGroup) {
      if (num_open == depth_) return Fail();
      open[num_open++] = tag >> 3;
    } else if (type == WireType::kEndGroup) {
      if (open[--num_open] != tag >> 3) return Fail();
      if (num_open == 0) return;
    } else {
      SkipValue(type);
    }
    if (at_ == end_) return Fail();
    tag = ReadTag();
    if (failed_) return;
  }
}

bool AreVarints(std::string_view packed) {
  int length = 0;
  for (const char c : packed) {
    ++length;
    if (static_cast<unsigned char>(c) < 0x80) {
      length = 0;
    } else if (length == 10) {
      return false;
    }
  }
  return length == 0;
}

std::uint64_t TakeVarint(std::string_view* packed) {
  std::uint64_t value = 0;
  for (int shift = 0; !packed->empty(); shift += 7) {
    const std::uint64_t byte = static_cast<unsigned char>(packed->front());
    packed->remove_prefix(1);
    value |= (byte & 0x7F) << shift;
    if (byte < 0x80 || shift == 63) break;
  }
  return value;
}

}  // namespace recsys
