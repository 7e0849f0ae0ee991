#ifndef RECSYS_SERVER_OBSERVE_CRC32_H_
#define RECSYS_SERVER_OBSERVE_CRC32_H_

#include <cstdint>
#include <string_view>

namespace recsys {

/// CRC-32 as zlib and PNG have it (polynomial 0xEDB88320, reflected).
std::uint32_t Crc32(std::string_view data);

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_CRC32_H_
