#ifndef RECSYS_FORMAT_ZIP_DIRECTORY_H_
#define RECSYS_FORMAT_ZIP_DIRECTORY_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// A file that is not a zip file, or is damaged.
class ZipError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One file within a zip file, as listed in the directory at its end.
struct ZipMember {
  std::string name;
  /// 0: stored; 8: deflated.
  int method = 0;
  std::uint32_t crc32 = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t num_bytes = 0;
  std::uint64_t header_offset = 0;
};

/// Returns the members of an untrusted zip file in memory. Throws ZipError.
std::vector<ZipMember> ZipMembers(std::string_view file);

/// Returns a member's bytes as stored. Throws ZipError.
std::string_view StoredBytes(std::string_view file, const ZipMember& member);

/// Returns the CRC-32 used by zip files.
std::uint32_t Crc32(std::string_view data);

}  // namespace recsys

#endif  // RECSYS_FORMAT_ZIP_DIRECTORY_H_
