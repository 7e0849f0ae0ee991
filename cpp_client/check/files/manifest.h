#ifndef RECSYS_CHECK_FILES_MANIFEST_H_
#define RECSYS_CHECK_FILES_MANIFEST_H_

// The artifact's manifest (docs/artifact.md; recsys/manifest.py): everything about a model but
// graphs and rows.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "check/files/blob.h"
#include "check/json/json.h"
#include "check/requests/plan.h"
#include "recsys/signature.h"

namespace recsys {

/// A file of the artifact.
struct Part {
  std::string path;
  std::int64_t size_bytes = 0;
  std::string sha256;
};

/// Attribute paths of a skeleton and a rank for each, in the manifest's order.
using RankedPaths = std::vector<std::pair<std::string, std::int64_t>>;

/// A graph of a target: the part that holds it, which of its buffers take rows, and where its other
/// tensors lie.
struct Graph {
  std::string skeleton;
  RankedPaths rows;
  RankedPaths ranks;
};

/// The model for one list of devices.
struct Target {
  std::string name;
  std::vector<std::string> device_names;
  std::vector<Device> devices;
  Plan plan;
  Graph graph;
  /// The ranking form; there where the signature has a context, and nowhere else.
  std::optional<Graph> ranking;
  std::string dense_dtype;
};

/// A table and how its rows are stored.
struct TableInfo {
  std::string name;
  std::int64_t num_embeddings = 0;
  std::int64_t embedding_dim = 0;
  DataType data_type = DataType::kFp32;
  /// Whether one more row, of zeros, follows the last.
  bool zero_row = false;
  std::string pooling;
  std::optional<double> sqnr_db;

  Wide num_rows() const { return Wide{num_embeddings} + (zero_row ? 1 : 0); }
};

/// A manifest whose parts agree. What reads it may trust sizes: none overflows.
struct Manifest {
  std::string name;
  std::vector<std::pair<std::string, std::string>> versions;
  Signature signature;
  std::vector<TableInfo> tables;
  std::vector<RowBlock> blocks;
  /// Block by block.
  std::vector<std::string> block_sha256;
  /// Of the rows' file, or of the rows within a single file.
  std::int64_t rows_bytes = 0;
  /// The part that holds the rows; none in a single file, whose graph holds them.
  std::optional<std::string> rows_path;
  std::vector<Target> targets;
  std::vector<Part> skeletons;
  /// What the exporter measured; for people.
  Json verification;

  const Part* FindSkeleton(const std::string& path) const;
  const TableInfo* FindTable(const std::string& table) const;
  /// The text that the exporter writes, its own digest included.
  std::string Dumps() const;
  /// The artifact's name by content: twelve hexadecimal digits.
  std::string Digest() const;
  /// Of a package; empty where there is none.
  std::string VersionOf(std::string_view package) const;
};

/// Reads a manifest; trusts nothing.
/// Throws Error: kForeignFile, kNewerFormat or kManifest, with the texts of recsys/manifest.py.
Manifest ReadManifest(std::string_view content);

/// Digits of a digest that names an artifact or a delta.
inline constexpr std::size_t kDigestDigits = 12;

}  // namespace recsys

#endif  // RECSYS_CHECK_FILES_MANIFEST_H_
