#include "format/manifest/manifest_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "format/json/checked_json.h"
#include "format/json/signature_json.h"

namespace recsys {
namespace {

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kManifest, text); }

std::vector<std::string> SortedNames(const Manifest& manifest) {
  std::vector<std::string> names;
  for (const TableInfo& table : manifest.tables) names.push_back(table.name);
  std::sort(names.begin(), names.end());
  return names;
}

using Columns = std::pair<Wide, Wide>;

/// Returns the names in `all` that are not in `found`.
std::vector<std::string> Lacking(const std::set<std::string>& all,
                                 const std::set<std::string>& found) {
  std::vector<std::string> lacking;
  std::set_difference(all.begin(), all.end(), found.begin(), found.end(),
                      std::back_inserter(lacking));
  return lacking;
}

}  // namespace

void CheckOnce(const std::vector<std::string>& names, const std::string& at) {
  const std::vector<std::string> doubled = Doubled(names);
  if (doubled.empty()) return;
  Refuse(at + ": got " + Listed(doubled) + " more than once, expected each once");
}

void CheckColumns(const Manifest& manifest) {
  std::map<std::string, std::vector<Columns>> columns;
  for (const RowBlock& block : manifest.blocks) {
    columns[block.table].emplace_back(block.column_start, block.column_end);
  }
  for (const TableInfo& table : manifest.tables) {
    std::vector<Columns>& found = columns[table.name];
    std::sort(found.begin(), found.end());
    Wide at = 0;
    bool fits = true;
    for (const auto& [start, end] : found) {
      fits = fits && start == at;
      at = end;
    }
    if (fits && at == table.embedding_dim) continue;
    Refuse("manifest.rows.blocks: table " + Repr(table.name) + " got columns " + RangesText(found) +
           ", expected all of its " + std::to_string(table.embedding_dim) + " exactly once");
  }
}

void CheckSignatureTables(const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.signature.sparse.size(); ++i) {
    const std::vector<TableUse>& uses = manifest.signature.sparse[i].tables;
    for (std::size_t j = 0; j < uses.size(); ++j) {
      const TableUse& use = uses[j];
      const std::string at =
          "signature.sparse[" + std::to_string(i) + "].tables[" + std::to_string(j) + "]";
      const TableInfo* table = manifest.FindTable(use.name);
      if (table == nullptr) {
        Refuse(at + ".name: got " + Repr(use.name) + ", expected one of the tables " +
               Listed(SortedNames(manifest)));
      }
      if (use.num_embeddings != table->num_embeddings) {
        Refuse(at + ".num_embeddings: got " + std::to_string(use.num_embeddings) + ", expected " +
               std::to_string(table->num_embeddings) + ", as the table says");
      }
      if ((use.id_policy == IdPolicy::kZero) != table->zero_row) {
        Refuse(at + ".id_policy: got " + IdPolicyName(use.id_policy) +
               ", expected zero where the table stores a row of zeros, and nowhere else");
      }
    }
  }
}

void CheckRanking(const Manifest& manifest) {
  const bool has_context = !manifest.signature.context.empty();
  if (has_context && !manifest.rows_path) {
    Refuse("signature.context: got inputs in a single file, expected none: it holds one graph");
  }
  for (std::size_t i = 0; i < manifest.targets.size(); ++i) {
    const bool has = manifest.targets[i].ranking.has_value();
    if (has == has_context) continue;
    Refuse("manifest.targets[" + std::to_string(i) + "].ranking: got " +
           (has ? "a graph" : "none") + ", expected " +
           (has_context ? "a graph, because signature.context names inputs" : "null"));
  }
}

void CheckDevices(const Target& target, const std::string& at) {
  std::string expected;
  for (const Device& device : target.devices) {
    if (device.type == "meta") Refuse(at + ".devices: got 'meta', expected cpu or cuda:N");
    expected += (expected.empty() ? "" : ",") + device.name();
  }
  if (target.name != expected) {
    Refuse(at + ".name: got " + Repr(target.name) + ", expected its devices, " + Repr(expected));
  }
}

void CheckTargetPlan(const Target& target, const Manifest& manifest, const std::string& at) {
  std::set<std::string> known, named;
  for (const TableInfo& table : manifest.tables) known.insert(table.name);
  for (const CollectionPlan& collection : target.plan) {
    for (const TablePlan& table : collection.tables) named.insert(collection.TablePath(table));
  }
  if (known != named) {
    Refuse(at + ".plan: missing tables " + Listed(Lacking(known, named)) + ", unknown tables " +
           Listed(Lacking(named, known)));
  }
  std::set<std::tuple<std::string, Wide, Wide>> cuts;
  for (const RowBlock& block : manifest.blocks) {
    cuts.emplace(block.table, block.column_start, block.column_end);
  }
  const auto world_size = static_cast<std::int64_t>(target.devices.size());
  for (const CollectionPlan& collection : target.plan) {
    for (const TablePlan& plan : collection.tables) {
      const TableInfo& table = *manifest.FindTable(collection.TablePath(plan));
      try {
        CheckTablePlan(plan, table.num_embeddings, table.embedding_dim, world_size);
      } catch (const PlanError& error) {
        Refuse(at + "." + error.what());
      }
      for (const Shard& shard : plan.shards) {
        const auto [start, end] = shard.columns();
        if (cuts.count({table.name, start, end}) > 0) continue;
        Refuse(at + ".plan: table " + Repr(plan.name) + " got a shard of columns (" +
               WideText(start) + ", " + WideText(end) + "), expected those of a block");
      }
    }
  }
}

}  // namespace recsys
