#ifndef RECSYS_FORMAT_MANIFEST_MANIFEST_H_
#define RECSYS_FORMAT_MANIFEST_MANIFEST_H_

// The artifact's manifest (recsys/artifact/manifest.py): describes everything about a model except
// its graphs and rows.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/blob.h"
#include "format/json/json.h"
#include "format/manifest/plan.h"
#include "recsys/signature.h"

namespace recsys {

/// A file of the artifact.
struct Part {
  std::string path;
  std::int64_t size_bytes = 0;
  std::string sha256;
};

/// Attribute paths of a skeleton and the rank of each, in the manifest's order.
using RankedPaths = std::vector<std::pair<std::string, std::int64_t>>;

/// A graph of a target: the part that contains it, the buffers that take rows, and the ranks of its
/// other tensors. `skeleton` is empty without TorchScript.
struct Graph {
  std::string skeleton;
  RankedPaths rows;
  RankedPaths ranks;
  /// The part with the graph as an ExportedProgram, which Python alone loads; empty without.
  std::string exported;
  /// The part with the graph as a program; empty for a graph that does more than its steps.
  std::string program;
};

/// The model for one list of devices.
struct Target {
  std::string name;
  std::vector<std::string> device_names;
  std::vector<Device> devices;
  Plan plan;
  Graph graph;
  /// The ranking form; set exactly if the signature has a context.
  std::optional<Graph> ranking;
  std::string dense_dtype;
  /// The type in which linear layers multiply: float32, bfloat16 or int8.
  std::string linear_dtype = "float32";
};

/// A table and how its rows are stored.
struct TableInfo : TableShape {
  /// Whether an additional row of zeros follows the last one.
  bool zero_row = false;

  Wide num_rows() const { return Wide{num_embeddings} + (zero_row ? 1 : 0); }
};

/// A managed table in a mapping.
struct MappedTable {
  std::string name;
  std::int64_t num_rows = 0;
  /// A power of two.
  std::int64_t num_buckets = 0;
};

/// A mapping of raw IDs to rows: the path of its buckets in the graphs, the part that holds them,
/// and its tables in the order of their buckets (recsys/artifact/mappings.py).
struct MappingInfo {
  std::string path;
  std::string part;
  std::vector<MappedTable> tables;

  std::int64_t num_buckets() const;
};

/// A manifest whose parts are consistent. Its sizes can be trusted: none overflows.
struct Manifest {
  std::string name;
  std::vector<std::pair<std::string, std::string>> versions;
  Signature signature;
  std::vector<TableInfo> tables;
  std::vector<RowBlock> blocks;
  /// One digest per block.
  std::vector<std::string> block_sha256;
  /// Size of the rows' file, or of the rows within a single file.
  std::int64_t rows_bytes = 0;
  /// The part with the rows; not set for a single file, whose graph contains them.
  std::optional<std::string> rows_path;
  std::vector<Target> targets;
  std::vector<Part> skeletons;
  /// Those of earlier releases are in the graphs.
  std::vector<MappingInfo> mappings;
  /// Rows with the answers that the export has verified; null without any.
  Json answers;
  /// The artifact's content-based name: twelve hexadecimal digits of the SHA-256 of the manifest's
  /// bytes.
  std::string digest;

  /// The first version of the format whose readers can load every target.
  std::int64_t format_version() const;
  const Part* FindSkeleton(const std::string& path) const;
  const TableInfo* FindTable(const std::string& table) const;
  /// Returns a package's version; empty if there is none.
  std::string VersionOf(std::string_view package) const;
};

/// Reads an untrusted manifest. Throws Error: kForeignFile, kNewerFormat or kManifest.
Manifest ReadManifest(std::string_view content);

/// Reads the fields of a table that manifests and deltas share. Throws Error (kManifest).
TableShape TableShapeFromJson(const Json& data, const std::string& at);

/// Number of digits of a digest that names an artifact or a delta.
inline constexpr std::size_t kDigestDigits = 12;

}  // namespace recsys

#endif  // RECSYS_FORMAT_MANIFEST_MANIFEST_H_
