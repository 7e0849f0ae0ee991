#ifndef RECSYS_ENGINE_COUNTERS_RING_H_
#define RECSYS_ENGINE_COUNTERS_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace recsys {

/// A queue of pending records, bounded by their number and their bytes. Records that do not fit are
/// dropped and counted. Thread-safe.
template <typename Record>
class Ring {
 public:
  Ring(std::int64_t max_entries, std::int64_t max_bytes)
      : max_entries_(max_entries), max_bytes_(max_bytes) {}

  /// Adds a record of that many bytes; returns false if it was dropped. A record larger than the
  /// ring fits into an empty one.
  bool Push(Record record, std::int64_t num_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!Fits(num_bytes)) return false;
    num_bytes_ += num_bytes;
    waiting_.emplace_back(std::move(record), num_bytes);
    return true;
  }

  /// Whether a record of that many bytes would fit now; if not, counts it as dropped. Call it
  /// before building a record that is costly.
  bool HasRoom(std::int64_t num_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Fits(num_bytes);
  }

  /// Moves up to `at_most` records into `records`, oldest first; returns whether some are left.
  template <typename Any>
  bool Take(std::size_t at_most, std::vector<Any>* records) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (; at_most > 0 && !waiting_.empty(); --at_most) {
      num_bytes_ -= waiting_.front().second;
      records->push_back(std::move(waiting_.front().first));
      waiting_.pop_front();
    }
    return !waiting_.empty();
  }

  std::int64_t num_dropped() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_dropped_;
  }

 private:
  bool Fits(std::int64_t num_bytes) {
    if (waiting_.empty() || (static_cast<std::int64_t>(waiting_.size()) < max_entries_ &&
                             num_bytes_ + num_bytes <= max_bytes_)) {
      return true;
    }
    ++num_dropped_;
    return false;
  }

  const std::int64_t max_entries_;
  const std::int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::deque<std::pair<Record, std::int64_t>> waiting_;
  std::int64_t num_bytes_ = 0;
  std::int64_t num_dropped_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_COUNTERS_RING_H_
