#include "base/sha256.h"
#include "check/files/manifest.h"
#include "check/json/signature_json.h"

namespace recsys {
namespace {

Json RanksToJson(const RankedPaths& paths) {
  Json data = Json::object();
  for (const auto& [path, rank] : paths) data[path] = rank;
  return data;
}

void GraphToJson(const Graph& graph, Json* data) {
  (*data)["skeleton"] = nullptr;
  if (!graph.skeleton.empty()) (*data)["skeleton"] = graph.skeleton;
  (*data)["rows"] = RanksToJson(graph.rows);
  (*data)["ranks"] = RanksToJson(graph.ranks);
}

void FormatsToJson(const Graph& graph, Json* data) {
  if (!graph.program.empty()) (*data)["program"] = graph.program;
  if (!graph.exported.empty()) (*data)["exported"] = graph.exported;
}

Json TargetToJson(const Target& target) {
  Json data = {{"name", target.name}, {"devices", target.device_names}};
  data["plan"] = PlanToJson(target.plan);
  GraphToJson(target.graph, &data);
  data["dense_dtype"] = target.dense_dtype;
  if (target.linear_dtype != "float32") data["linear_dtype"] = target.linear_dtype;
  FormatsToJson(target.graph, &data);
  if (target.ranking) {
    Json& ranking = data["ranking"] = Json::object();
    GraphToJson(*target.ranking, &ranking);
    FormatsToJson(*target.ranking, &ranking);
  }
  return data;
}

Json TableToJson(const TableInfo& table) {
  Json data = {{"name", table.name},
               {"num_embeddings", table.num_embeddings},
               {"embedding_dim", table.embedding_dim},
               {"data_type", DataTypeNames()[static_cast<std::size_t>(table.data_type)]},
               {"zero_row", table.zero_row},
               {"pooling", table.pooling}};
  data["sqnr_db"] = nullptr;
  if (table.sqnr_db) data["sqnr_db"] = *table.sqnr_db;
  return data;
}

Json RowsToJson(const Manifest& manifest) {
  Json blocks = Json::array();
  for (std::size_t i = 0; i < manifest.blocks.size(); ++i) {
    const RowBlock& block = manifest.blocks[i];
    Json data = Json::object();
    data["table"] = block.table;
    data["columns"] = {block.column_start, block.column_end};
    data["num_rows"] = block.num_rows();
    data["row_bytes"] = static_cast<std::int64_t>(block.row_bytes());
    data["offset_bytes"] = block.offset_bytes;
    data["sha256"] = manifest.block_sha256[i];
    blocks.push_back(std::move(data));
  }
  Json rows = Json::object();
  rows["path"] = nullptr;
  if (manifest.rows_path) rows["path"] = *manifest.rows_path;
  rows["size_bytes"] = manifest.rows_bytes;
  rows["blocks"] = std::move(blocks);
  return rows;
}

}  // namespace

std::string Manifest::Dumps() const {
  Json data = {{"format", "recsys-artifact"}, {"format_version", format_version()}, {"name", name}};
  Json& packages = data["versions"] = Json::object();
  for (const auto& [package, version] : versions) packages[package] = version;
  data["signature"] = SignatureToJson(signature);
  Json& all_tables = data["tables"] = Json::array();
  for (const TableInfo& table : tables) all_tables.push_back(TableToJson(table));
  data["rows"] = RowsToJson(*this);
  Json& all_targets = data["targets"] = Json::array();
  for (const Target& target : targets) all_targets.push_back(TargetToJson(target));
  Json& parts = data["skeletons"] = Json::array();
  for (const Part& part : skeletons) {
    parts.push_back(
        {{"path", part.path}, {"size_bytes", part.size_bytes}, {"sha256", part.sha256}});
  }
  data["verification"] = verification;
  data["manifest_sha256"] = Sha256Hex(CanonicalJson(data));
  return IndentedJson(data) + "\n";
}

}  // namespace recsys
