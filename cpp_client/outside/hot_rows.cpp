#include "outside/hot_rows.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ops/kernels/kernels.h"

namespace recsys {
namespace {

/// A row that was read often must give way after so many others at last.
constexpr std::uint8_t kMostCount = 63;
/// Bytes of a place beside its row.
constexpr std::int64_t kPlaceBytes = sizeof(std::int64_t) + 1;

/// Returns zeros that take no memory before they are written to.
template <typename T>
std::unique_ptr<T[], void (*)(void*)> Zeros(std::int64_t count) {
  void* const memory = std::calloc(static_cast<std::size_t>(count), sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<T*>(memory), std::free};
}

}  // namespace

HotRows::HotRows(std::int64_t max_bytes, const std::vector<Block>& blocks)
    : blocks_(blocks.size()) {
  double all_bytes = 0;
  for (const Block& block : blocks)
    all_bytes += static_cast<double>(block.num_rows * block.row_bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    Places& places = blocks_[i];
    places.row_bytes = block.row_bytes;
    const double share =
        static_cast<double>(block.num_rows * block.row_bytes) / std::max(all_bytes, 1.0);
    const auto num_bytes = static_cast<std::int64_t>(static_cast<double>(max_bytes) * share);
    // Sets are not filled evenly: a block that fits has room to spare.
    places.num_sets =
        std::min(num_bytes / (block.row_bytes + kPlaceBytes), 2 * block.num_rows) / kWays;
    const std::int64_t count = places.num_sets * kWays;
    if (count == 0) continue;
    places.rows = Zeros<std::int64_t>(count);
    places.counts = Zeros<std::uint8_t>(count);
    places.bytes = Zeros<std::uint8_t>(count * block.row_bytes);
  }
}

std::int64_t HotRows::FirstOf(const Places& places, std::int64_t row) {
  const auto set =
      ops::MixedId(static_cast<std::uint64_t>(row)) % static_cast<std::uint64_t>(places.num_sets);
  return static_cast<std::int64_t>(set) * kWays;
}

std::int64_t HotRows::PlaceOf(const Places& places, std::int64_t first, std::int64_t row) {
  for (std::int64_t at = first; at < first + kWays; ++at) {
    if (places.rows[at] == row + 1) return at;
  }
  return -1;
}

bool HotRows::Copy(std::int64_t block, std::int64_t row, std::uint8_t* to) {
  Places& places = blocks_[static_cast<std::size_t>(block)];
  if (places.num_sets == 0) return false;
  const std::int64_t first = FirstOf(places, row);
  const std::lock_guard<std::mutex> lock(LockOf(first));
  const std::int64_t at = PlaceOf(places, first, row);
  if (at < 0) return false;
  if (places.counts[at] < kMostCount) ++places.counts[at];
  std::memcpy(to, places.bytes.get() + at * places.row_bytes,
              static_cast<std::size_t>(places.row_bytes));
  return true;
}

void HotRows::Offer(std::int64_t block, std::int64_t row, const std::uint8_t* from) {
  Places& places = blocks_[static_cast<std::size_t>(block)];
  if (places.num_sets == 0) return;
  const std::int64_t first = FirstOf(places, row);
  const std::lock_guard<std::mutex> lock(LockOf(first));
  // Another thread may have read it, too.
  if (PlaceOf(places, first, row) >= 0) return;
  std::int64_t least = first;
  for (std::int64_t at = first; at < first + kWays && places.rows[least] != 0; ++at) {
    if (places.rows[at] == 0 || places.counts[at] < places.counts[least]) least = at;
  }
  if (places.rows[least] == 0) {
    num_bytes_.fetch_add(places.row_bytes + kPlaceBytes, std::memory_order_relaxed);
  } else if (places.counts[least] > 0) {
    --places.counts[least];
    return;
  }
  places.rows[least] = row + 1;
  places.counts[least] = 1;
  std::memcpy(places.bytes.get() + least * places.row_bytes, from,
              static_cast<std::size_t>(places.row_bytes));
}

void HotRows::Replace(std::int64_t block, std::int64_t row, const std::uint8_t* from) {
  Places& places = blocks_[static_cast<std::size_t>(block)];
  if (places.num_sets == 0) return;
  const std::int64_t first = FirstOf(places, row);
  const std::lock_guard<std::mutex> lock(LockOf(first));
  const std::int64_t at = PlaceOf(places, first, row);
  if (at < 0) return;
  std::memcpy(places.bytes.get() + at * places.row_bytes, from,
              static_cast<std::size_t>(places.row_bytes));
}

}  // namespace recsys
