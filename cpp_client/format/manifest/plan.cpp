#include "format/manifest/plan.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <tuple>

#include "base/text.h"
#include "format/json/checked_json.h"

namespace recsys {
namespace {

using Range = std::pair<Wide, Wide>;

const std::vector<std::string>& ShardingTypes() {
  static const std::vector<std::string> types{
      "data_parallel",  "table_wise",        "column_wise", "row_wise",
      "table_row_wise", "table_column_wise", "grid_shard"};
  return types;
}

const Json& Mapping(const Json& data, const std::string& at) {
  if (!data.is_object()) throw PlanError(at + ": got " + StrOf(data) + ", expected an object");
  return data;
}

std::pair<std::int64_t, std::int64_t> PairOf(const Json& data, const char* key,
                                             const std::string& at) {
  const Json& value = JsonField(data, key, at);
  if (!value.is_array() || value.size() != 2 || !IsWhole(value[0], 0) || !IsWhole(value[1], 0)) {
    throw PlanError(at + "." + key + ": got " + StrOf(value) +
                    ", expected two whole numbers (rows, columns)");
  }
  return {value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
}

TablePlan TableFromJson(const std::string& name, const Json& data, const std::string& at) {
  TablePlan plan;
  plan.name = name;
  ForEachItem(data, "shards", at, [&](const std::string& to, const Json& item) {
    Shard shard;
    std::tie(shard.row_start, shard.column_start) = PairOf(item, "shard_offsets", to);
    std::tie(shard.num_rows, shard.num_columns) = PairOf(item, "shard_sizes", to);
    shard.rank = JsonWhole(item, "rank", to);
    plan.shards.push_back(shard);
  });
  plan.sharding_type = JsonChoice(data, "sharding_type", at, ShardingTypes());
  if (data.contains("compute_kernel")) {
    plan.compute_kernel = JsonChoice(data, "compute_kernel", at,
                                     {"dense", "fused", "fused_uvm", "fused_uvm_caching"});
  }
  return plan;
}

bool Covers(const std::vector<Range>& ranges, std::int64_t size) {
  Wide at = 0;
  for (const auto& [start, end] : ranges) {
    if (start != at || end <= start) return false;
    at = end;
  }
  return at == size;
}

Device DeviceOf(const std::string& name) {
  const PlanError wrong("devices: got " + Repr(name) + ", expected cpu or cuda:N");
  const std::size_t colon = name.find(':');
  Device device{name.substr(0, colon), 0};
  if (device.type != "cpu" && device.type != "cuda" && device.type != "meta") throw wrong;
  if (colon == name.npos) return device;
  const std::string index = name.substr(colon + 1);
  const bool is_number =
      !index.empty() && index.size() <= 3 &&
      std::all_of(index.begin(), index.end(), [](unsigned char c) { return std::isdigit(c); });
  if (!is_number || (index.size() > 1 && index[0] == '0')) throw wrong;
  device.index = std::atoi(index.c_str());
  if (device.index > 127) throw wrong;
  return device;
}

}  // namespace

Plan PlanFromJson(const Json& data) {
  Plan plan;
  try {
    for (const auto& collection : Mapping(data, "plan").items()) {
      const std::string at = "plan[" + Repr(collection.key()) + "]";
      plan.push_back({collection.key(), {}});
      for (const auto& table : Mapping(collection.value(), at).items()) {
        plan.back().tables.push_back(
            TableFromJson(table.key(), table.value(), at + "[" + Repr(table.key()) + "]"));
      }
    }
  } catch (const Error& error) {
    throw PlanError(error.what());
  }
  return plan;
}

void CheckTablePlan(const TablePlan& plan, std::int64_t num_embeddings, std::int64_t embedding_dim,
                    std::int64_t world_size) {
  const std::string at = "plan[" + Repr(plan.name) + "]";
  if (plan.is_replicated()) {
    if (plan.shards.empty()) return;
    throw PlanError(at + ".shards: got " + std::to_string(plan.shards.size()) +
                    ", expected none: data_parallel copies all");
  }
  std::set<std::int64_t> wrong;
  std::map<Range, std::vector<Range>> blocks;
  std::vector<Range> all_columns;
  for (const Shard& shard : plan.shards) {
    if (shard.rank >= world_size) wrong.insert(shard.rank);
    blocks[shard.columns()].push_back(shard.rows());
  }
  if (!wrong.empty()) {
    std::string ranks;
    for (const std::int64_t rank : wrong)
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    throw PlanError(at + ": got ranks [" + ranks + "], expected 0 to " +
                    std::to_string(world_size - 1) + " (" + std::to_string(world_size) +
                    " devices)");
  }
  const std::string whole = std::to_string(num_embeddings) + " × " + std::to_string(embedding_dim);
  for (const auto& block : blocks) all_columns.push_back(block.first);
  if (!Covers(all_columns, embedding_dim)) {
    throw PlanError(at + ": shards' columns " + RangesText(all_columns) +
                    " do not cover the table's " + whole + " exactly once");
  }
  for (auto& [columns, rows] : blocks) {
    std::sort(rows.begin(), rows.end());
    if (Covers(rows, num_embeddings)) continue;
    const std::string found = RangesText({columns});
    throw PlanError(at + ": shards' rows " + RangesText(rows) + " at columns " +
                    found.substr(1, found.size() - 2) + " do not cover the table's " + whole +
                    " exactly once");
  }
}

std::vector<Device> DevicesOf(const std::vector<std::string>& names) {
  if (names.empty()) throw PlanError("devices: got none, expected at least one");
  std::vector<Device> devices;
  for (const std::string& name : names) devices.push_back(DeviceOf(name));
  return devices;
}

}  // namespace recsys
