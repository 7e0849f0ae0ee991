#ifndef RECSYS_ENGINE_HTTP2_BOUNDS_MEMORY_LEDGER_H_
#define RECSYS_ENGINE_HTTP2_BOUNDS_MEMORY_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_set>

namespace recsys::http2 {

/// What the connections of a port hold together: unfinished messages and answers not yet sent.
/// Beyond the bound it has the connection closed that holds most, one at a time. Thread-safe.
class MemoryLedger {
 public:
  /// `max_bytes`: 0 for no bound; `total` is where the sum stands.
  MemoryLedger(std::int64_t max_bytes, std::atomic<std::int64_t>* total)
      : max_bytes_(max_bytes), total_(total) {}

  /// What one connection holds. Its methods are for one thread.
  class Account {
   public:
    /// `close` is called by any thread, with a lock held: it hands the closing to the connection's
    /// own thread.
    Account(MemoryLedger* ledger, std::function<void()> close);
    ~Account();
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    void Add(std::int64_t num_bytes);
    std::int64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }

   private:
    friend class MemoryLedger;
    MemoryLedger* const ledger_;
    const std::function<void()> close_;
    std::atomic<std::int64_t> num_bytes_{0};
  };

 private:
  void CloseLargest();

  const std::int64_t max_bytes_;
  std::atomic<std::int64_t>* const total_;
  std::mutex mutex_;
  std::unordered_set<const Account*> accounts_;
  /// Of the connection that is being closed; null for none.
  const Account* closing_ = nullptr;
};

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_BOUNDS_MEMORY_LEDGER_H_
