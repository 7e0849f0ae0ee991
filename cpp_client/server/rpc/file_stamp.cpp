#include "server/rpc/file_stamp.h"

#include <sys/stat.h>

namespace recsys {

FileStamp StampOf(const std::vector<std::string>& paths) {
  FileStamp stamp;
  for (const std::string& path : paths) {
    struct stat found = {};
    if (stat(path.c_str(), &found) != 0) {
      stamp.push_back({});
      continue;
    }
    // The time of change is that of modes and owners too.
    stamp.push_back({static_cast<std::int64_t>(found.st_dev),
                     static_cast<std::int64_t>(found.st_ino),
                     static_cast<std::int64_t>(found.st_size), found.st_mtim.tv_sec,
                     found.st_mtim.tv_nsec, found.st_ctim.tv_sec, found.st_ctim.tv_nsec});
  }
  return stamp;
}

}  // namespace recsys
