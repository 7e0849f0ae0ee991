#include "server/rpc/connection_count.h"

#include <sys/stat.h>

namespace recsys {
namespace {

// What a flood of connections beyond the bound may cost: with 8192 open ones a look takes about 2
// ms.
constexpr double kLookEveryS = 0.02;

}  // namespace

bool ConnectionCount::IdentityOf(int file, Identity* identity) {
  struct stat found = {};
  if (fstat(file, &found) != 0) return false;
  *identity = {static_cast<std::uint64_t>(found.st_dev), static_cast<std::uint64_t>(found.st_ino)};
  return true;
}

bool ConnectionCount::Take(int file) {
  if (max_connections_ == 0) return true;
  open_.erase(file);
  if (static_cast<std::int64_t>(open_.size()) >= max_connections_) DropClosed();
  if (static_cast<std::int64_t>(open_.size()) >= max_connections_) return false;
  Identity identity;
  if (IdentityOf(file, &identity)) open_[file] = identity;
  return true;
}

void ConnectionCount::DropClosed() {
  const double now_s = clock_();
  if (now_s - looked_s_ < kLookEveryS) return;
  looked_s_ = now_s;
  for (auto it = open_.begin(); it != open_.end();) {
    Identity now;
    // Another file may have the number by now: it is known by what it is.
    const bool is_open = IdentityOf(it->first, &now) && now == it->second;
    it = is_open ? std::next(it) : open_.erase(it);
  }
}

}  // namespace recsys
