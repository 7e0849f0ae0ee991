#ifndef RECSYS_FORMAT_MANIFEST_PLAN_H_
#define RECSYS_FORMAT_MANIFEST_PLAN_H_

// Where each shard of each table is placed (recsys/sharding/plan/plan.py), and a target's devices
// (recsys/sharding/plan/env.py).

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "format/json/json.h"
#include "format/wide.h"

namespace recsys {

/// A plan that does not match the tables or the devices.
class PlanError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A rectangle of a table.
struct Shard {
  std::int64_t row_start = 0, column_start = 0;
  std::int64_t num_rows = 0, num_columns = 0;
  std::int64_t rank = 0;

  std::pair<Wide, Wide> rows() const { return {row_start, Wide{row_start} + num_rows}; }
  std::pair<Wide, Wide> columns() const { return {column_start, Wide{column_start} + num_columns}; }
};

/// How one table is split into shards.
struct TablePlan {
  std::string name;
  std::string sharding_type;
  std::vector<Shard> shards;
  /// Empty: left to the sharder.
  std::string compute_kernel;

  bool is_replicated() const { return sharding_type == "data_parallel"; }
};

/// A collection's tables; `path` is "" if the collection is the model itself.
struct CollectionPlan {
  std::string path;
  std::vector<TablePlan> tables;

  /// Returns a table's name within the whole model.
  std::string TablePath(const TablePlan& table) const {
    return path.empty() ? table.name : path + "." + table.name;
  }
};

using Plan = std::vector<CollectionPlan>;

/// Reads an untrusted plan. Throws PlanError.
Plan PlanFromJson(const Json& data);

/// Checks that the table's shards cover it exactly once, and that every rank exists. Throws
/// PlanError.
void CheckTablePlan(const TablePlan& plan, std::int64_t num_embeddings, std::int64_t embedding_dim,
                    std::int64_t world_size);

/// One of a target's devices.
struct Device {
  /// "cpu", "cuda" or "meta".
  std::string type;
  int index = 0;

  std::string name() const { return type == "cuda" ? "cuda:" + std::to_string(index) : type; }
};

/// Throws PlanError if there is no device, or one of an unknown kind.
std::vector<Device> DevicesOf(const std::vector<std::string>& names);

}  // namespace recsys

#endif  // RECSYS_FORMAT_MANIFEST_PLAN_H_
