#include "format/zip_directory.h"

#include <zlib.h>

#include <cstring>

namespace recsys {
namespace {

// Signatures and sizes of the zip format (APPNOTE 6.3, sections 4.3.7 to 4.3.16).
constexpr std::string_view kLocal("PK\3\4", 4), kEntry("PK\1\2", 4), kEnd("PK\5\6", 4);
constexpr std::string_view kEnd64("PK\6\6", 4), kLocator64("PK\6\7", 4);
constexpr std::size_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocatorBytes = 20;
constexpr std::uint64_t kInExtra32 = 0xffffffff;

/// Reads little-endian numbers from a text, checking all bounds.
class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}

  std::string_view Bytes(std::uint64_t at, std::uint64_t num) const {
    if (at > data_.size() || num > data_.size() - at) throw ZipError("cut off");
    return data_.substr(at, num);
  }
  std::uint64_t Number(std::uint64_t at, std::size_t num_bytes) const {
    std::uint64_t value = 0;
    std::memcpy(&value, Bytes(at, num_bytes).data(), num_bytes);
    return value;
  }
  std::size_t size() const { return data_.size(); }

 private:
  std::string_view data_;
};

struct Directory {
  std::uint64_t num_entries, offset;
};

Directory FindDirectory(std::string_view file) {
  const Reader reader(file);
  const std::size_t at = file.rfind(kEnd);
  if (at == file.npos || file.size() - at < kEndBytes) throw ZipError("no zip file");
  Directory found{reader.Number(at + 10, 2), reader.Number(at + 16, 4)};
  if (at < kLocatorBytes || reader.Bytes(at - kLocatorBytes, 4) != kLocator64) return found;
  const std::uint64_t end64 = reader.Number(at - kLocatorBytes + 8, 8);
  if (reader.Bytes(end64, kEnd64Bytes).substr(0, 4) != kEnd64) throw ZipError("damaged");
  return {reader.Number(end64 + 32, 8), reader.Number(end64 + 48, 8)};
}

/// Reads sizes and offsets that exceed 32 bits from the extra field.
void ReadExtra(std::string_view extra, ZipMember* member) {
  const Reader reader(extra);
  for (std::uint64_t at = 0; at + 4 <= extra.size();) {
    const std::uint64_t id = reader.Number(at, 2), size = reader.Number(at + 2, 2);
    if (id == 1) {
      const Reader numbers(reader.Bytes(at + 4, size));
      std::uint64_t next = 0;
      for (std::uint64_t* number :
           {&member->num_bytes, &member->stored_bytes, &member->header_offset}) {
        if (*number != kInExtra32) continue;
        *number = numbers.Number(next, 8);
        next += 8;
      }
    }
    at += 4 + size;
  }
}

}  // namespace

std::vector<ZipMember> ZipMembers(std::string_view file) {
  const Reader reader(file);
  const Directory directory = FindDirectory(file);
  std::vector<ZipMember> members;
  std::uint64_t at = directory.offset;
  for (std::uint64_t i = 0; i < directory.num_entries; ++i) {
    if (reader.Bytes(at, kEntryBytes).substr(0, 4) != kEntry) throw ZipError("damaged");
    const std::uint64_t name = reader.Number(at + 28, 2), extra = reader.Number(at + 30, 2);
    ZipMember member;
    member.method = static_cast<int>(reader.Number(at + 10, 2));
    member.crc32 = static_cast<std::uint32_t>(reader.Number(at + 16, 4));
    member.stored_bytes = reader.Number(at + 20, 4);
    member.num_bytes = reader.Number(at + 24, 4);
    member.header_offset = reader.Number(at + 42, 4);
    member.name = std::string(reader.Bytes(at + kEntryBytes, name));
    ReadExtra(reader.Bytes(at + kEntryBytes + name, extra), &member);
    members.push_back(std::move(member));
    at += kEntryBytes + name + extra + reader.Number(at + 32, 2);
  }
  return members;
}

std::string_view StoredBytes(std::string_view file, const ZipMember& member) {
  const Reader reader(file);
  const std::uint64_t at = member.header_offset;
  if (reader.Bytes(at, kLocalBytes).substr(0, 4) != kLocal) throw ZipError("damaged");
  const std::uint64_t name_bytes = reader.Number(at + 26, 2);
  if (reader.Bytes(at + kLocalBytes, name_bytes) != member.name) throw ZipError("damaged");
  const std::uint64_t skipped = kLocalBytes + name_bytes + reader.Number(at + 28, 2);
  return reader.Bytes(at + skipped, member.stored_bytes);
}

std::uint32_t Crc32(std::string_view data) {
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const unsigned char*>(data.data()), data.size()));
}

}  // namespace recsys
