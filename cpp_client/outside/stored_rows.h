#ifndef RECSYS_OUTSIDE_STORED_ROWS_H_
#define RECSYS_OUTSIDE_STORED_ROWS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/outside/outside_rows.h"
#include "outside/hot_rows.h"
#include "outside/node.h"
#include "outside/reading.h"
#include "outside/store_keys.h"
#include "recsys/model.h"

namespace recsys {

/// The rows of an artifact that lie in nodes, behind a cache of those that are read often.
///
/// All rows of a batch are of one state: that which was set last. A node keeps what deltas have
/// replaced, so that a model that has not applied the last delta yet reads the rows before it.
class StoredRows final : public ops::OutsideRows {
 public:
  /// Whose rows they are.
  struct Artifact {
    std::string name;
    std::string digest;
  };

  /// `on_zeros`: called before rows are answered as zeros. Throws Error: kConfig for options that
  /// are wrong, kRowsMemory for nodes that do not hold the rows.
  StoredRows(const OutsideRowsOptions& options, const Artifact& artifact,
             std::vector<StoredBlock> blocks, std::function<void()> on_zeros);

  Place Find(std::int64_t offset) const override;
  void Read(const std::vector<Wanted>& rows) override;

  /// Returns the number of the state that a delta leads to. Throws Error (kDelta) if a node does
  /// not hold it.
  std::int64_t NumberOf(const std::string& delta_digest) const;
  /// Reads rows of another state from now on. No other function may run.
  void SetState(RowsState state) { state_ = std::move(state); }
  /// Replaces a row where it is held; with SetState.
  void Replace(const Wanted& row) { hot_.Replace(row.block, row.row, row.to); }

  const std::vector<StoredBlock>& blocks() const { return blocks_; }
  OutsideRowsCounts counts() const;

 private:
  std::unique_ptr<Lines> TakeLines();
  void CheckNodes(const Artifact& artifact) const;
  void ReadMissing(const std::vector<Wanted>& rows);
  /// Answers rows that were not read with zeros, or throws.
  void Miss(const std::vector<Wanted>& rows, const std::vector<Reading::Failure>& failures);

  const std::vector<StoredBlock> blocks_;
  const std::function<void()> on_zeros_;
  std::string prefix_;
  std::vector<std::string> block_prefixes_;
  mutable std::deque<Node> nodes_;
  ReadingPlan plan_;
  HotRows hot_;
  RowsState state_;

  std::mutex lines_mutex_;
  /// Those that no thread uses now.
  std::vector<std::unique_ptr<Lines>> lines_;
  mutable std::mutex counts_mutex_;
  OutsideRowsCounts counts_;
};

}  // namespace recsys

#endif  // RECSYS_OUTSIDE_STORED_ROWS_H_
