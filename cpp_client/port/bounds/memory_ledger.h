#ifndef RECSYS_PORT_BOUNDS_MEMORY_LEDGER_H_
#define RECSYS_PORT_BOUNDS_MEMORY_LEDGER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_set>

namespace recsys::http2 {

/// Counts the bytes held by all connections of a port: sessions, open calls with their headers,
/// unfinished messages, unsent answers. Above half of the bound, connections that hold more than
/// their even share get no new calls; above the bound, the largest connection is closed, one at a
/// time. Thread-safe.
class MemoryLedger {
 public:
  /// `max_bytes`: 0 for no bound; `total` receives the sum.
  MemoryLedger(std::int64_t max_bytes, std::atomic<std::int64_t>* total)
      : max_bytes_(max_bytes),
        max_unpublished_bytes_(max_bytes > 0 ? std::min(kMaxUnpublishedBytes, max_bytes / kShare)
                                             : kMaxUnpublishedBytes),
        total_(total) {}

  /// The bytes held by one connection. Its methods must be called from one thread.
  class Account {
   public:
    /// `close` may be called from any thread, with a lock held: it must leave the closing to the
    /// connection's own thread.
    Account(MemoryLedger* ledger, std::function<void()> close);
    ~Account();
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    void Add(std::int64_t num_bytes);
    /// Adds to the sum what was not added yet: little, so that threads seldom meet there.
    void Publish();
    /// Whether the connection may open further calls.
    bool MayOpen() const;
    /// The connection has released what it can, as `close` told it to: another one may be closed.
    void Closed();
    /// Takes all that the account holds out of the sum, and does what Closed does. The connection
    /// calls this before it counts itself as closed, so that the counters agree.
    void Release();
    std::int64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }

   private:
    friend class MemoryLedger;
    MemoryLedger* const ledger_;
    const std::function<void()> close_;
    std::atomic<std::int64_t> num_bytes_{0};
    std::int64_t unpublished_ = 0;
  };

 private:
  static constexpr std::int64_t kMaxUnpublishedBytes = 4096;
  static constexpr std::int64_t kShare = 1 << 16;
  void CloseLargest();

  const std::int64_t max_bytes_;
  /// Of each account, at most so much is missing in the sum until Publish.
  const std::int64_t max_unpublished_bytes_;
  std::atomic<std::int64_t>* const total_;
  std::mutex mutex_;
  std::unordered_set<const Account*> accounts_;
  std::atomic<std::int64_t> num_accounts_{0};
  /// Account of the connection being closed; null for none.
  const Account* closing_ = nullptr;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_BOUNDS_MEMORY_LEDGER_H_
