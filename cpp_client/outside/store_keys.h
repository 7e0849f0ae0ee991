#ifndef RECSYS_OUTSIDE_STORE_KEYS_H_
#define RECSYS_OUTSIDE_STORE_KEYS_H_

// How rows lie in nodes (recsys/artifact/store/keys.py).

#include <cstdint>
#include <string>
#include <vector>

namespace recsys {

/// Rows of a block that one key holds.
constexpr std::int64_t kChunkRows = 256;
/// Before each row: the number of the state that it belongs to, as a little-endian integer.
constexpr std::int64_t kNumberBytes = 4;

/// A state of an artifact's rows: that of the artifact, or after a delta.
struct RowsState {
  /// SHA-256 of the artifact's manifest, or of the delta's file.
  std::string digest;
  /// How many deltas of the nodes lead to it.
  std::int64_t number = 0;
};

/// A block of rows that lies in nodes.
struct StoredBlock {
  std::string table;
  std::int64_t column_start = 0;
  std::int64_t row_start = 0;
  std::int64_t num_rows = 0;
  std::int64_t row_bytes = 0;
  /// Where it lies in the tensor with all rows.
  std::int64_t offset_bytes = 0;
  /// Whether rows that cannot be read are zeros.
  bool is_zero = false;

  std::int64_t record_bytes() const { return row_bytes + kNumberBytes; }
  std::int64_t end_bytes() const { return offset_bytes + num_rows * row_bytes; }
};

/// Returns what all keys of an artifact begin with.
std::string KeyPrefix(const std::string& model, const std::string& digest);
/// Returns the key of what a node says of its rows.
std::string MetaKey(const std::string& prefix);
/// Returns the field of what a node says that holds the number of a state.
std::string StateField(const std::string& digest);
/// Returns what the keys of a block's chunks begin with; the number of the chunk and "}" follow.
std::string BlockPrefix(const std::string& prefix, const StoredBlock& block);
/// Returns the key of the records of a row before the present one.
std::string OldKey(const std::string& block_prefix, std::int64_t row);

/// Returns the node that holds a chunk.
inline std::size_t NodeOf(std::int64_t chunk, std::size_t num_nodes) {
  return static_cast<std::size_t>(chunk) % num_nodes;
}

}  // namespace recsys

#endif  // RECSYS_OUTSIDE_STORE_KEYS_H_
