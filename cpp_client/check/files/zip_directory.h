#ifndef RECSYS_CHECK_FILES_ZIP_DIRECTORY_H_
#define RECSYS_CHECK_FILES_ZIP_DIRECTORY_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// A file that is no zip file, or a damaged one.
class ZipError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One file within a zip file, as the directory at its end says.
struct ZipMember {
  std::string name;
  /// 0: as it is; 8: deflated.
  int method = 0;
  std::uint32_t crc32 = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t num_bytes = 0;
  std::uint64_t header_offset = 0;
};

/// The members of a zip file that lies in memory. Trusts nothing. Throws ZipError.
std::vector<ZipMember> ZipMembers(std::string_view file);

/// The stored bytes of a member. Throws ZipError.
std::string_view StoredBytes(std::string_view file, const ZipMember& member);

/// CRC-32 as zip files have it; `so_far`: of what came before.
std::uint32_t Crc32(std::string_view data, std::uint32_t so_far = 0);

}  // namespace recsys

#endif  // RECSYS_CHECK_FILES_ZIP_DIRECTORY_H_
