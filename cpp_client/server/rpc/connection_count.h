#ifndef RECSYS_SERVER_RPC_CONNECTION_COUNT_H_
#define RECSYS_SERVER_RPC_CONNECTION_COUNT_H_

#include <cstdint>
#include <unordered_map>

#include "base/clock.h"

namespace recsys {

/// Which connections are open, of sockets that others close without a word: looked up only where
/// there may be too many.
///
/// Cheap for every connection within the bound: a file number that comes again was closed before,
/// and what else was closed is found by asking the system for each, at most once in a while. Not
/// thread-safe.
class ConnectionCount {
 public:
  /// 0 for any number.
  explicit ConnectionCount(std::int64_t max_connections, Clock clock = MonotonicSeconds)
      : max_connections_(max_connections), clock_(std::move(clock)) {}

  /// Takes a socket that was just accepted; whether there is room for it.
  bool Take(int file);

 private:
  struct Identity {
    std::uint64_t device = 0;
    std::uint64_t number = 0;
    bool operator==(const Identity& other) const {
      return device == other.device && number == other.number;
    }
  };
  static bool IdentityOf(int file, Identity* identity);
  void DropClosed();

  const std::int64_t max_connections_;
  const Clock clock_;
  std::unordered_map<int, Identity> open_;
  double looked_s_ = -1e9;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_CONNECTION_COUNT_H_
