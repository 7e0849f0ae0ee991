#include "format/manifest/manifest.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/hash/sha256.h"
#include "base/text.h"
#include "format/delta_header.h"
#include "format/json/checked_json.h"
#include "format/json/signature_json.h"
#include "format/manifest/manifest_checks.h"
#include "format/slots.h"

namespace recsys {
namespace {

constexpr char kFormat[] = "recsys-artifact";
constexpr std::int64_t kFormatVersion = 4;

/// Reads a plain file name: a manifest must not point outside its directory.
std::string FileName(const Json& data, const char* key, const std::string& at) {
  std::string value = JsonText(data, key, at);
  const bool is_plain = value != "." && value != ".." && value.find_first_of("/\\") == value.npos &&
                        value.find('\0') == value.npos;
  if (!is_plain) throw WrongField(at, key, StrOf(Json(value)), "a plain file name");
  // The longest name that Linux file systems accept.
  if (value.size() > 255) {
    throw WrongField(at, key, StrOf(Json(value)), "a file name of at most 255 bytes of UTF-8");
  }
  return value;
}

TableInfo TableFromJson(const Json& data, const std::string& at) {
  TableInfo table;
  static_cast<TableShape&>(table) = TableShapeFromJson(data, at);
  table.zero_row = JsonFlag(data, "zero_row", at);
  JsonChoice(data, "pooling", at, {"sum", "mean", "none"});
  const Json& sqnr = JsonField(data, "sqnr_db", at);
  if (!sqnr.is_null() && !sqnr.is_number()) {
    throw WrongField(at, "sqnr_db", StrOf(sqnr), "a number or null");
  }
  return table;
}

RankedPaths RanksFromJson(const Json& data, const char* key, const std::string& at,
                          std::size_t world_size) {
  RankedPaths found;
  const Json& mapping = JsonMapping(data, key, at);
  const std::string to = at + "." + key;
  for (const auto& item : mapping.items()) {
    const Json& value = item.value();
    if (!IsWhole(value, 0)) {
      throw WrongField(to, item.key(), StrOf(value), "a whole number of at least 0");
    }
    const auto rank = value.get<std::int64_t>();
    if (rank >= static_cast<std::int64_t>(world_size)) {
      throw WrongField(to, item.key(), StrOf(value), "a rank below " + std::to_string(world_size));
    }
    found.emplace_back(item.key(), rank);
  }
  return found;
}

/// Returns a graph's fields as this release writes them. Earlier ones wrote `compiled`: a package,
/// which nothing loads any more, beside an ExportedProgram and perhaps a program. Where there is
/// TorchScript, that runs.
Json Renamed(Json graph) {
  const auto found = graph.find("compiled");
  if (found == graph.end() || !found->is_object()) return graph;
  const Json compiled = *found;
  const auto rename = [&](const char* from, const char* to) {
    if (compiled.contains(from) && !graph.contains(to)) graph[to] = compiled[from];
  };
  rename("exported", "exported");
  if (!graph.contains("skeleton") || graph["skeleton"].is_null()) rename("operators", "program");
  return graph;
}

Graph GraphFromJson(const Json& data, const std::string& at, std::size_t world_size) {
  Graph graph;
  if (data.contains("exported")) graph.exported = FileName(data, "exported", at);
  // Null is for graphs that are exported in its place.
  const bool is_absent = !graph.exported.empty() && JsonField(data, "skeleton", at).is_null();
  if (!is_absent) graph.skeleton = FileName(data, "skeleton", at);
  graph.rows = RanksFromJson(data, "rows", at, world_size);
  graph.ranks = RanksFromJson(data, "ranks", at, world_size);
  if (data.contains("program")) graph.program = FileName(data, "program", at);
  return graph;
}

void CheckGraphs(const Target& target, const std::string& at) {
  if (!target.ranking) return;
  const bool same = target.ranking->skeleton.empty() == target.graph.skeleton.empty() &&
                    target.ranking->exported.empty() == target.graph.exported.empty();
  if (same) return;
  throw Error(ErrorKind::kManifest,
              at + ".ranking: got other graph formats than the plain form's, expected the same");
}

void CheckPlanRanks(const Target& target, const std::string& at) {
  std::set<std::int64_t> ranks;
  for (const CollectionPlan& collection : target.plan) {
    for (const TablePlan& table : collection.tables) {
      for (const Shard& shard : table.shards) ranks.insert(shard.rank);
    }
  }
  const auto world_size = static_cast<std::int64_t>(target.devices.size());
  if (ranks.empty() || *ranks.rbegin() < world_size) return;
  const std::vector<std::int64_t> sorted(ranks.begin(), ranks.end());
  throw WrongField(at, "plan", StrOf(Json(sorted)), "ranks below " + std::to_string(world_size));
}

Target TargetFromJson(const Json& stored, const std::string& at) {
  const Json data = Renamed(stored);
  Target target;
  for (const Json& device : JsonList(data, "devices", at))
    target.device_names.push_back(StrOf(device));
  target.devices = DevicesOf(target.device_names);
  target.name = JsonText(data, "name", at);
  CheckDevices(target, at);
  target.plan = PlanFromJson(JsonField(data, "plan", at));
  CheckPlanRanks(target, at);
  const bool is_on_cpu = std::all_of(target.device_names.begin(), target.device_names.end(),
                                     [](const std::string& name) { return name == "cpu"; });
  if (data.contains("exported") && !is_on_cpu) {
    throw Error(ErrorKind::kManifest, at + ".exported: got a graph for " + Repr(target.name) +
                                          ", expected none: only cpu has them");
  }
  target.graph = GraphFromJson(data, at, target.devices.size());
  target.dense_dtype = JsonChoice(data, "dense_dtype", at, {"float32", "bfloat16"});
  if (data.contains("linear_dtype")) {
    target.linear_dtype = JsonChoice(data, "linear_dtype", at, {"float32", "bfloat16", "int8"});
  }
  const auto ranking = data.find("ranking");
  if (ranking != data.end() && !ranking->is_null()) {
    const std::string to = at + ".ranking";
    target.ranking = GraphFromJson(Renamed(*ranking), to, target.devices.size());
  }
  CheckGraphs(target, at);
  return target;
}

/// Reads the blocks and checks them against the tables and each other: no two may overlap.
class BlockReader {
 public:
  explicit BlockReader(Manifest* manifest) : manifest_(manifest) {
    for (const TableInfo& table : manifest->tables) tables_.emplace(table.name, &table);
  }

  void Read(const Json& rows) {
    ForEachItem(rows, "blocks", "manifest.rows",
                [this](const std::string& at, const Json& data) { ReadBlock(data, at); });
    const Wide expected = BlobBytes(end_);
    const std::int64_t size = JsonWhole(rows, "size_bytes", "manifest.rows");
    if (size != expected) {
      throw WrongField("manifest.rows", "size_bytes", std::to_string(size),
                       WideText(expected) + ", as the blocks say");
    }
    manifest_->rows_bytes = size;
  }

 private:
  void ReadBlock(const Json& data, const std::string& at) {
    const TableInfo& table = TableOf(data, at);
    RowBlock block;
    block.table = table.name;
    block.data_type = table.data_type;
    ReadColumns(data, at, table, &block);
    block.row_end = JsonCount(data, "num_rows", at);
    block.offset_bytes = JsonWhole(data, "offset_bytes", at);
    ExpectCount(data, "num_rows", at, table.num_rows());
    ExpectCount(data, "row_bytes", at, block.row_bytes());
    if (block.offset_bytes < end_ || block.offset_bytes % kBlockAlignmentBytes != 0) {
      throw WrongField(at, "offset_bytes", std::to_string(block.offset_bytes),
                       "a multiple of 128 from " + WideText(end_) + " on");
    }
    end_ = block.offset_bytes + block.num_bytes();
    manifest_->block_sha256.push_back(JsonHex(data, "sha256", at, 64));
    manifest_->blocks.push_back(std::move(block));
  }

  const TableInfo& TableOf(const Json& data, const std::string& at) const {
    const std::string name = JsonText(data, "table", at);
    const auto found = tables_.find(name);
    if (found != tables_.end()) return *found->second;
    std::vector<std::string> names;
    for (const auto& table : tables_) names.push_back(table.first);
    throw WrongField(at, "table", StrOf(Json(name)), "one of the tables " + Listed(names));
  }

  static void ReadColumns(const Json& data, const std::string& at, const TableInfo& table,
                          RowBlock* block) {
    const Json& columns = JsonField(data, "columns", at);
    const bool are_whole = columns.is_array() && columns.size() == 2 &&
                           columns[0].is_number_integer() && columns[1].is_number_integer();
    if (!are_whole) throw WrongField(at, "columns", StrOf(columns), "first column and end");
    const bool fit = IsWhole(columns[0], 0) && IsWhole(columns[1], 0) &&
                     columns[0].get<std::int64_t>() < columns[1].get<std::int64_t>() &&
                     columns[1].get<std::int64_t>() <= table.embedding_dim;
    if (!fit) {
      throw WrongField(at, "columns", StrOf(columns),
                       "columns of a table of dim " + std::to_string(table.embedding_dim));
    }
    block->column_start = columns[0].get<std::int64_t>();
    block->column_end = columns[1].get<std::int64_t>();
  }

  static void ExpectCount(const Json& data, const char* key, const std::string& at, Wide expected) {
    const std::int64_t got = JsonCount(data, key, at);
    if (got != expected) {
      throw WrongField(at, key, std::to_string(got), WideText(expected) + ", as the table says");
    }
  }

  Manifest* manifest_;
  std::map<std::string, const TableInfo*> tables_;
  Wide end_ = 0;
};

/// Returns the parts that hold a graph.
std::vector<std::string> PartsOf(const Graph& graph) {
  std::vector<std::string> parts;
  for (const std::string* part : {&graph.skeleton, &graph.program, &graph.exported}) {
    if (!part->empty()) parts.push_back(*part);
  }
  return parts;
}

void ReadTargets(const Json& data, Manifest* manifest) {
  ForEachItem(data, "targets", "manifest", [&](const std::string& at, const Json& item) {
    manifest->targets.push_back(TargetFromJson(item, at));
  });
  if (manifest->targets.empty()) {
    throw Error(ErrorKind::kManifest, "manifest.targets: got none, expected at least one");
  }
  std::vector<std::string> names;
  for (const Target& target : manifest->targets) names.push_back(target.name);
  CheckOnce(names, "manifest.targets");
  std::set<std::string> unknown;
  for (std::size_t i = 0; i < manifest->targets.size(); ++i) {
    const Target& target = manifest->targets[i];
    CheckTargetPlan(target, *manifest, "manifest.targets[" + std::to_string(i) + "]");
    for (const Graph* graph : {&target.graph, target.ranking ? &*target.ranking : nullptr}) {
      if (graph == nullptr) continue;
      for (const std::string& part : PartsOf(*graph)) {
        if (manifest->FindSkeleton(part) == nullptr) unknown.insert(part);
      }
    }
  }
  // The graph of a single file is the file itself.
  if (!manifest->rows_path) unknown.erase("self");
  if (unknown.empty()) return;
  throw Error(ErrorKind::kManifest, "manifest.targets: skeletons " +
                                        Listed({unknown.begin(), unknown.end()}) +
                                        " are not among the parts");
}

void ReadSkeletons(const Json& data, Manifest* manifest) {
  ForEachItem(data, "skeletons", "manifest", [&](const std::string& at, const Json& item) {
    manifest->skeletons.push_back({FileName(item, "path", at), JsonWhole(item, "size_bytes", at),
                                   JsonHex(item, "sha256", at, 64)});
  });
}

MappedTable MappedTableOf(const Json& item, const std::string& at) {
  MappedTable table;
  table.name = JsonText(item, "name", at);
  table.num_rows = JsonCount(item, "num_rows", at);
  table.num_buckets = JsonCount(item, "num_buckets", at);
  const std::string most = std::to_string(kMaxMappedRows);
  if (table.num_rows > kMaxMappedRows) {
    throw WrongField(at, "num_rows", std::to_string(table.num_rows), "at most " + most);
  }
  const std::int64_t num = table.num_buckets;
  if (num < 2 || num > kMaxMappedRows || (num & (num - 1)) != 0) {
    throw WrongField(at, "num_buckets", std::to_string(num), "a power of two from 2 to " + most);
  }
  return table;
}

MappingInfo MappingOf(const Json& item, const std::string& at, const Manifest& manifest) {
  MappingInfo info;
  Wide num_bytes = 0;
  ForEachItem(item, "tables", at, [&](const std::string& place, const Json& table) {
    info.tables.push_back(MappedTableOf(table, place));
    num_bytes += Wide{info.tables.back().num_buckets} * kBucketBytes;
  });
  if (info.tables.empty()) throw WrongField(at, "tables", "[]", "one table at least");
  info.path = JsonText(item, "path", at);
  info.part = JsonText(item, "part", at);
  const Part* const part = manifest.FindSkeleton(info.part);
  if (part == nullptr || part->size_bytes != num_bytes) {
    throw WrongField(at, "part", StrOf(Json(info.part)),
                     "a part of " + WideText(num_bytes) + " bytes, as the tables say");
  }
  return info;
}

void ReadMappings(const Json& data, Manifest* manifest) {
  if (!data.contains("mappings")) return;
  std::vector<std::string> paths, parts, tables;
  ForEachItem(data, "mappings", "manifest", [&](const std::string& at, const Json& item) {
    manifest->mappings.push_back(MappingOf(item, at, *manifest));
    paths.push_back(manifest->mappings.back().path);
    parts.push_back(manifest->mappings.back().part);
    for (const MappedTable& table : manifest->mappings.back().tables) tables.push_back(table.name);
  });
  CheckOnce(paths, "manifest.mappings");
  CheckOnce(parts, "manifest.mappings");
  CheckOnce(tables, "manifest.mappings.tables");
  for (const MappingInfo& info : manifest->mappings) {
    for (const MappedTable& table : info.tables) {
      const TableInfo* const stored = manifest->FindTable(table.name);
      if (stored == nullptr || stored->num_embeddings == table.num_rows) continue;
      throw WrongField("manifest.mappings: table " + Repr(table.name), "num_rows",
                       std::to_string(table.num_rows),
                       std::to_string(stored->num_embeddings) + ", as the table says");
    }
  }
}

/// Checks that the manifest has a digest, and `bytes_sha256`. Earlier releases wrote
/// `manifest_sha256` alone, which is of other bytes than the stored ones; Python compares that.
void CheckOwnDigest(std::string_view content, const Json& data) {
  const auto found = data.find("bytes_sha256");
  const bool fits = found == data.end()
                        ? data.contains("manifest_sha256")
                        : *found == Sha256Hex(content.substr(0, content.rfind("\"bytes_sha256\"")));
  if (fits) return;
  throw Error(ErrorKind::kManifest,
              "manifest: its own digest does not match; it was changed or damaged");
}

Manifest FromJson(const Json& data) {
  Manifest manifest;
  std::vector<std::string> names, paths;
  ForEachItem(data, "tables", "manifest", [&](const std::string& at, const Json& item) {
    manifest.tables.push_back(TableFromJson(item, at));
    names.push_back(manifest.tables.back().name);
  });
  CheckOnce(names, "manifest.tables");
  const Json& rows = JsonField(data, "rows", "manifest");
  BlockReader(&manifest).Read(rows);
  CheckColumns(manifest);
  const Json& path = JsonField(rows, "path", "manifest.rows");
  ReadSkeletons(data, &manifest);
  if (!path.is_null()) manifest.rows_path = "";  // whether there is one; the path is set later
  ReadTargets(data, &manifest);
  for (const Part& part : manifest.skeletons) paths.push_back(part.path);
  CheckOnce(paths, "manifest.skeletons");
  ReadMappings(data, &manifest);
  manifest.signature = SignatureFromJson(JsonField(data, "signature", "manifest"));
  CheckSignatureTables(manifest);
  CheckRanking(manifest);
  manifest.name = JsonText(data, "name", "manifest");
  for (const auto& version : JsonMapping(data, "versions", "manifest").items()) {
    manifest.versions.emplace_back(version.key(), StrOf(version.value()));
  }
  if (manifest.rows_path) manifest.rows_path = FileName(rows, "path", "manifest.rows");
  JsonMapping(data, "verification", "manifest");
  if (data.contains("answers")) manifest.answers = JsonMapping(data, "answers", "manifest");
  return manifest;
}

}  // namespace

std::int64_t MappingInfo::num_buckets() const {
  std::int64_t num = 0;
  for (const MappedTable& table : tables) num += table.num_buckets;
  return num;
}

std::int64_t Manifest::format_version() const {
  if (!mappings.empty()) return 4;
  if (signature.by_request || signature.has_integers()) return 3;
  const bool all_scripted = std::all_of(targets.begin(), targets.end(), [](const Target& target) {
    return !target.graph.skeleton.empty();
  });
  return all_scripted ? 1 : 2;
}

const Part* Manifest::FindSkeleton(const std::string& path) const {
  const auto found = std::find_if(skeletons.begin(), skeletons.end(),
                                  [&](const Part& part) { return part.path == path; });
  return found == skeletons.end() ? nullptr : &*found;
}

const TableInfo* Manifest::FindTable(const std::string& table) const {
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const TableInfo& info) { return info.name == table; });
  return found == tables.end() ? nullptr : &*found;
}

std::string Manifest::VersionOf(std::string_view package) const {
  for (const auto& [found, version] : versions) {
    if (found == package) return version;
  }
  return "";
}

TableShape TableShapeFromJson(const Json& data, const std::string& at) {
  TableShape table;
  table.name = JsonText(data, "name", at);
  table.num_embeddings = JsonCount(data, "num_embeddings", at);
  table.embedding_dim = JsonCount(data, "embedding_dim", at);
  table.data_type = DataTypeOf(JsonChoice(data, "data_type", at, DataTypeNames()));
  return table;
}

Manifest ReadManifest(std::string_view content) {
  Json data;
  try {
    data = ParseJson(content);
  } catch (const JsonError& error) {
    throw Error(ErrorKind::kManifest,
                std::string("manifest: not readable as JSON: ") + error.what());
  }
  if (!data.is_object() || data.find("format") == data.end() || data["format"] != kFormat) {
    throw Error(ErrorKind::kForeignFile, std::string("manifest: its format is not '") + kFormat +
                                             "'; this is not an exported model");
  }
  CheckFormatVersion(data, kFormatVersion, "manifest");
  CheckOwnDigest(content, data);
  try {
    Manifest manifest = FromJson(data);
    manifest.digest = Sha256Hex(content).substr(0, kDigestDigits);
    return manifest;
  } catch (const PlanError& error) {
    throw Error(ErrorKind::kManifest, std::string("manifest: ") + error.what());
  }
}

}  // namespace recsys
