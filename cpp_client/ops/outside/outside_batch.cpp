#include "ops/outside/outside_batch.h"

#include <cstddef>
#include <utility>

namespace recsys::ops {
namespace {

constexpr std::size_t kFirstSize = 1024;

/// Returns where a row of a block is looked for first.
std::size_t HashOf(std::int64_t block, std::int64_t row) {
  return MixedId(static_cast<std::uint64_t>(row) + (static_cast<std::uint64_t>(block) << 48));
}

}  // namespace

void OutsideBatch::Grow() {
  table_.assign(table_.empty() ? kFirstSize : 2 * table_.size(), 0);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    std::size_t at = HashOf(rows_[i].block, rows_[i].row) & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = static_cast<std::int32_t>(i + 1);
  }
}

std::int64_t OutsideBatch::PositionOf(std::int64_t block, std::int64_t row,
                                      std::int64_t row_bytes) {
  if (2 * rows_.size() >= table_.size()) Grow();
  const std::size_t mask = table_.size() - 1;
  std::size_t at = HashOf(block, row) & mask;
  for (; table_[at] != 0; at = (at + 1) & mask) {
    const std::int32_t position = table_[at] - 1;
    const OutsideRows::Wanted& known = rows_[static_cast<std::size_t>(position)];
    if (known.row == row && known.block == block) return position;
  }
  rows_.push_back({block, row, nullptr});
  starts_.push_back(num_bytes_);
  num_bytes_ += row_bytes;
  table_[at] = static_cast<std::int32_t>(rows_.size());
  return static_cast<std::int64_t>(rows_.size()) - 1;
}

std::int64_t OutsideBatch::Add(const Lookup& lookup, const Slot& slot, OutsideRows::Place place,
                               Found* found) {
  const std::int64_t* const offsets = OffsetsOf(lookup, slot);
  const std::int64_t from = offsets[0], to = offsets[lookup.num_bags];
  const std::int64_t row_bytes = RowBytes(slot.type, slot.dim);
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(to - from));
  for (std::int64_t i = from; i < to; ++i) {
    const std::uint64_t row = RowOfId(slot, lookup.ids[i]);
    if (row >= slot.num_rows) return i;
    positions.push_back(
        PositionOf(place.block, place.first_row + static_cast<std::int64_t>(row), row_bytes));
  }
  slots_.push_back({found, std::move(positions)});
  return -1;
}

std::vector<std::uint8_t> OutsideBatch::Read(OutsideRows* from) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(num_bytes_));
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].to = bytes.data() + starts_[i];
  if (!rows_.empty()) from->Read(rows_);
  for (const Slots& slot : slots_) {
    // Not empty, so that its address says that its rows were found.
    slot.found->reserve(slot.positions.size() + 1);
    slot.found->clear();
    for (const std::int64_t position : slot.positions) {
      slot.found->push_back(rows_[static_cast<std::size_t>(position)].to);
    }
  }
  return bytes;
}

}  // namespace recsys::ops
