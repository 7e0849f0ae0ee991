#ifndef RECSYS_OUTSIDE_HOT_ROWS_H_
#define RECSYS_OUTSIDE_HOT_ROWS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace recsys {

/// The rows that are read most often, as they are stored. Thread-safe.
///
/// Each row has a few places that it can take. It takes one of the row there that was read least
/// often, once that has been asked to give way as often as it was read: rows that are read once
/// displace none that are read again and again.
class HotRows {
 public:
  /// A block of rows.
  struct Block {
    std::int64_t num_rows = 0;
    std::int64_t row_bytes = 0;
  };

  /// `max_bytes` are shared among the blocks by their size.
  HotRows(std::int64_t max_bytes, const std::vector<Block>& blocks);

  /// Copies a row. Returns whether it is held.
  bool Copy(std::int64_t block, std::int64_t row, std::uint8_t* to);
  /// Holds a row that was read elsewhere, if there is a place for it.
  void Offer(std::int64_t block, std::int64_t row, const std::uint8_t* from);
  /// Replaces a row if it is held.
  void Replace(std::int64_t block, std::int64_t row, const std::uint8_t* from);

  /// Returns the bytes that the held rows take.
  std::int64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::int64_t kWays = 8;
  static constexpr std::size_t kNumLocks = 64;

  /// Places for the rows of one block.
  struct Places {
    std::int64_t num_sets = 0;
    std::int64_t row_bytes = 0;
    /// By place: the row, plus one; 0 of an empty place.
    std::unique_ptr<std::int64_t[], void (*)(void*)> rows{nullptr, nullptr};
    /// How often it was read, less how often it was asked to give way.
    std::unique_ptr<std::uint8_t[], void (*)(void*)> counts{nullptr, nullptr};
    std::unique_ptr<std::uint8_t[], void (*)(void*)> bytes{nullptr, nullptr};
  };

  /// Returns the first place of a row's set.
  static std::int64_t FirstOf(const Places& places, std::int64_t row);
  std::mutex& LockOf(std::int64_t first) {
    return locks_[static_cast<std::size_t>(first / kWays) % kNumLocks];
  }
  /// Returns the place of a row, or -1. The set's lock is held.
  static std::int64_t PlaceOf(const Places& places, std::int64_t first, std::int64_t row);

  std::vector<Places> blocks_;
  std::array<std::mutex, kNumLocks> locks_;
  std::atomic<std::int64_t> num_bytes_{0};
};

}  // namespace recsys

#endif  // RECSYS_OUTSIDE_HOT_ROWS_H_
