#ifndef RECSYS_SERVER_RPC_FILE_STAMP_H_
#define RECSYS_SERVER_RPC_FILE_STAMP_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace recsys {

/// How files looked: of each the device, the number, the size and the times of the last changes.
using FileStamp = std::vector<std::array<std::int64_t, 7>>;

/// Changes when a file is written, replaced or opened to others; a missing one has a stamp too.
FileStamp StampOf(const std::vector<std::string>& paths);

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_FILE_STAMP_H_
