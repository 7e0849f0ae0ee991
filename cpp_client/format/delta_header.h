#ifndef RECSYS_FORMAT_DELTA_HEADER_H_
#define RECSYS_FORMAT_DELTA_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "format/blob.h"
#include "format/json/json.h"
#include "format/wide.h"

namespace recsys {

/// A byte range of a delta's file.
struct DeltaSection {
  std::int64_t offset_bytes = 0;
  std::int64_t num_bytes = 0;
  std::string sha256;
};

/// The changed rows of one table.
struct TableDelta : TableShape {
  std::int64_t num_rows = 0;
  DeltaSection rows;
  DeltaSection numbers;
};

/// The raw IDs of a managed table whose rows change.
struct MappingDelta {
  std::string name;
  std::int64_t num_rows = 0;
  std::int64_t num_ids = 0;
  std::int64_t num_evicted = 0;
  DeltaSection raw_ids;
  DeltaSection rows;
  DeltaSection evicted;
};

/// A changed dense weight.
struct DenseDelta {
  /// The path of the tensor in the artifact's graphs.
  std::string name;
  /// One of DenseDtypeNames().
  std::string dtype;
  std::vector<std::int64_t> shape;
  /// Its numbers, row-major.
  DeltaSection values;
};

/// The types of dense weights: "float64", "float32" and so on.
const std::vector<std::string>& DenseDtypeNames();

/// Returns the bytes of a tensor of one of these types; at most the largest int64, which no file
/// has.
Wide TensorBytes(const std::string& dtype, const std::vector<std::int64_t>& shape);

/// The header of a delta (recsys/artifact/delta/header.py).
struct DeltaHeader {
  std::string model;
  /// The digest of the artifact it applies to.
  std::string artifact;
  /// The state it was made from: that digest, or the one of the previous delta.
  std::string base;
  std::int64_t num_dense_left = 0;
  std::vector<TableDelta> tables;
  std::vector<MappingDelta> mappings;
  std::vector<DenseDelta> dense;
  /// Of a compacted chain, the digests of its deltas in order.
  std::vector<std::string> replaces;

  /// Returns whether the delta can be applied in a state; a compacted chain also in the middle of
  /// it.
  bool Fits(const std::string& state) const;
};

/// Least offset of a section in a delta's file.
inline constexpr std::int64_t kDeltaPreambleBytes = 64;

/// Reads an untrusted header, whose sections must end by `end`. Throws Error: kForeignFile,
/// kNewerFormat or kManifest.
DeltaHeader DeltaHeaderFromJson(const Json& data, std::int64_t end);

}  // namespace recsys

#endif  // RECSYS_FORMAT_DELTA_HEADER_H_
