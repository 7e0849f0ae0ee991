#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/text.h"
#include "base/yield.h"
#include "format/delta_file.h"
#include "format/json/checked_json.h"
#include "model/parts.h"
#include "ops/torch/dtypes.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// Two to three microseconds each where the system copies a page.
constexpr std::size_t kRowsPerYield = 16;

/// The changes of a delta to one block of one rank.
struct BlockChange {
  /// [R, row_bytes] uint8, the block itself.
  at::Tensor target;
  /// [N] int64, rows of the block, ascending; on the target's device, like the rows.
  at::Tensor places;
  /// [N, row_bytes] uint8, their new contents.
  at::Tensor rows;

  void Write() const {
    if (!target.device().is_cpu()) {
      at::Tensor(target).index_copy_(0, places, rows);
      return;
    }
    ForEach([](char* in_place, const char* row, std::size_t size) {
      std::memcpy(in_place, row, size);
    });
  }

  /// Makes private copies of the pages if rows in host memory are mapped from a file. Overwrites
  /// one byte of each row with itself, so concurrent lookups read unchanged values. Without this,
  /// Write would wait for the system to copy each page, which takes fifty times as long as copying
  /// the rows.
  void Touch() const {
    if (!target.device().is_cpu()) return;
    std::size_t num_touched = 0;
    ForEach([&](char* in_place, const char* /*row*/, std::size_t size) {
      if (num_touched++ % kRowsPerYield == 0) YieldIfDue();
      for (char* byte : {in_place, in_place + size - 1}) {
        auto* const own = const_cast<volatile char*>(byte);
        *own = *own;
      }
    });
  }

 private:
  template <typename Put>
  void ForEach(Put put) const {
    const auto row_bytes = static_cast<std::size_t>(target.size(1));
    char* const to = static_cast<char*>(target.mutable_data_ptr());
    const char* row = static_cast<const char*>(rows.const_data_ptr());
    const std::int64_t* place = places.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < places.numel(); ++i, row += row_bytes) {
      put(to + static_cast<std::size_t>(place[i]) * row_bytes, row, row_bytes);
    }
  }
};

/// The changes of a delta to a block outside the process, whose nodes hold them too.
struct OutsideChange {
  std::int64_t block = 0;
  /// [N] int64 and [N, row_bytes] uint8, as above.
  at::Tensor places, rows;

  void Write(StoredRows* to) const {
    const std::int64_t row_bytes = rows.size(1);
    auto* row = rows.mutable_data_ptr<std::uint8_t>();
    const auto* const place = places.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < places.numel(); ++i, row += row_bytes) {
      to->Replace({block, place[i], row});
    }
  }
};

/// Which rows of a managed table get and lose raw IDs.
struct OwnedChange {
  LoadedTable* table = nullptr;
  std::vector<std::int64_t> freed, taken;

  void Write() const {
    for (const std::int64_t row : freed) table->is_owned[static_cast<std::size_t>(row)] = false;
    for (const std::int64_t row : taken) table->is_owned[static_cast<std::size_t>(row)] = true;
  }
};

void Synchronize(const std::vector<BlockChange>& changes) {
  for (const BlockChange& change : changes) {
    if (change.target.is_cuda()) torch::cuda::synchronize(change.target.device().index());
  }
}

/// Throws that a delta was made from another state than the current one of the rows.
[[noreturn]] void ThrowState(const std::string& base, const LoadedRows& loaded) {
  throw Error(ErrorKind::kDelta,
              "delta.base: got " + Repr(base) + ", expected " + Repr(loaded.state_now) +
                  ", the rows that the model holds: apply deltas in the order in "
                  "which they were made, each once, from the artifact on");
}

void CheckTable(const TableDelta& table, const LoadedRows& loaded, const std::string& at) {
  const TableInfo* known = loaded.manifest.FindTable(table.name);
  if (known == nullptr) {
    std::vector<std::string> names;
    for (const TableInfo& info : loaded.manifest.tables) names.push_back(info.name);
    std::sort(names.begin(), names.end());
    throw WrongField(at, "name", StrOf(Json(table.name)), "one of the tables " + Listed(names));
  }
  const auto expect = [&](const char* key, const std::string& got, const std::string& expected) {
    if (got == expected) return;
    throw WrongField(at, key, got, expected + ", as table " + Repr(table.name) + " has it");
  };
  const auto type_name = [](DataType type) {
    return DataTypeNames()[static_cast<std::size_t>(type)];
  };
  expect("num_embeddings", std::to_string(table.num_embeddings),
         std::to_string(known->num_embeddings));
  expect("embedding_dim", std::to_string(table.embedding_dim),
         std::to_string(known->embedding_dim));
  expect("data_type", type_name(table.data_type), type_name(known->data_type));
}

/// Returns the managed table of a name; null if there is none.
LoadedTable* FindMapped(LoadedRows* loaded, const std::string& name) {
  for (LoadedMapping& mapping : loaded->mappings) {
    for (LoadedTable& table : mapping.tables) {
      if (table.name == name) return &table;
    }
  }
  return nullptr;
}

void CheckMappings(const DeltaHeader& header, LoadedRows* loaded) {
  if (!header.mappings.empty() && loaded->mappings.empty()) {
    throw Error(ErrorKind::kDelta,
                "delta.mappings: got raw IDs of table " + Repr(header.mappings[0].name) +
                    ", expected none: the artifact keeps no mapping beside its rows, as earlier "
                    "releases did; export the new checkpoint as a whole");
  }
  for (std::size_t i = 0; i < header.mappings.size(); ++i) {
    const MappingDelta& mapping = header.mappings[i];
    const std::string at = "delta.mappings[" + std::to_string(i) + "]";
    const LoadedTable* const table = FindMapped(loaded, mapping.name);
    if (table == nullptr) {
      throw WrongField(at, "name", StrOf(Json(mapping.name)),
                       "one of the managed tables of the artifact");
    }
    if (table->num_rows == mapping.num_rows) continue;
    throw WrongField(
        at, "num_rows", std::to_string(mapping.num_rows),
        std::to_string(table->num_rows) + ", as table " + Repr(mapping.name) + " has it");
  }
}

/// Checks that a delta is for this artifact, and for the current state of its rows.
void CheckFit(const DeltaHeader& header, LoadedRows* of) {
  const LoadedRows& loaded = *of;
  if (header.artifact != loaded.digest) {
    throw Error(ErrorKind::kDelta,
                "delta.artifact: got " + Repr(header.artifact) + " (model " +
                    Repr(StrOf(Json(header.model))) + "), expected " + Repr(loaded.digest) +
                    " (model " + Repr(loaded.manifest.name) +
                    "): it was made for another artifact; make it for this one, or load that one");
  }
  {
    const std::lock_guard<std::mutex> guard(loaded.lock);
    if (!header.Fits(loaded.state_now)) ThrowState(header.base, loaded);
  }
  for (std::size_t i = 0; i < header.tables.size(); ++i) {
    CheckTable(header.tables[i], loaded, "delta.tables[" + std::to_string(i) + "]");
  }
  CheckMappings(header, of);
}

/// Returns a tensor over an array, which it keeps.
template <typename T>
at::Tensor TensorOver(const std::shared_ptr<T[]>& array, at::IntArrayRef sizes,
                      at::ScalarType dtype) {
  return at::from_blob(
      array.get(), sizes, [array](void* /*numbers*/) {}, at::TensorOptions().dtype(dtype));
}

/// Returns the change of a table's buckets as that of a block of rows.
BlockChange BucketsOf(const LoadedTable& table, BucketChange* planned) {
  const auto tensor = [](std::vector<std::int64_t>* numbers) {
    const auto held = std::make_shared<std::vector<std::int64_t>>(std::move(*numbers));
    const auto num = static_cast<std::int64_t>(held->size());
    return TensorOver(std::shared_ptr<std::int64_t[]>(held, held->data()), {num}, at::kLong);
  };
  return {table.buckets, tensor(&planned->buckets),
          tensor(&planned->contents).view({-1, kBucketNumbers}).view(at::kByte)};
}

/// Adds a table's rows, cut and padded for each block of each rank that contains some.
/// Those of rows outside the process go to `outside`.
void AddChanges(const LoadedRows& loaded, const TableDelta& table, const DeltaRows& delta,
                std::vector<BlockChange>* changes, std::vector<OutsideChange>* outside) {
  const std::int64_t* const numbers = delta.numbers.get();
  const at::Tensor places = TensorOver(delta.numbers, {delta.num_rows}, at::kLong);
  const at::Tensor rows = TensorOver(
      delta.rows, {delta.num_rows, static_cast<std::int64_t>(table.row_format().row_bytes())},
      at::kByte);
  std::set<const void*> done;
  for (const DeviceRows& rank : loaded.ranks) {
    // Ranks in host memory share one tensor: it is changed once.
    if (!done.insert(rank.rows.const_data_ptr()).second) continue;
    for (const RowBlock& block : rank.blocks) {
      if (block.table != table.name) continue;
      const std::int64_t first =
          std::lower_bound(numbers, numbers + delta.num_rows, block.row_start) - numbers;
      const std::int64_t end =
          std::lower_bound(numbers, numbers + delta.num_rows, block.row_end) - numbers;
      if (first >= end) continue;
      at::Tensor in_block = places.slice(0, first, end);
      if (block.row_start != 0) in_block = in_block - block.row_start;
      const at::Tensor cut = CutForBlock(rows.slice(0, first, end), table.embedding_dim, block);
      if (loaded.outside != nullptr) {
        const std::int64_t stored = loaded.outside->Find(block.offset_bytes).block;
        if (stored >= 0) {
          outside->push_back({stored, in_block, cut.contiguous()});
          continue;
        }
      }
      changes->push_back(
          {RowsOfBlock(rank.rows, block), in_block.to(rank.device), cut.to(rank.device)});
    }
  }
}

}  // namespace

class PreparedDelta {
 public:
  std::string digest;
  std::string base;
  std::int64_t num_dense_left = 0;
  std::vector<BlockChange> changes;
  std::vector<OwnedChange> owned;
  std::vector<OutsideChange> outside;
  /// Of the state of the rows outside the process.
  std::int64_t outside_number = 0;
  /// Not set if no dense weight changes.
  std::optional<GraphChange> graphs;
  /// The rows it was prepared for.
  std::shared_ptr<LoadedRows> loaded;
};

std::shared_ptr<const PreparedDelta> Model::PrepareDelta(const std::string& path) const {
  const c10::InferenceMode guard;
  DeltaFile file(path);
  const DeltaHeader& header = file.header();
  CheckFit(header, parts_->rows.get());
  parts_->graphs->Check(header);
  auto prepared = std::make_shared<PreparedDelta>();
  if (parts_->rows->outside != nullptr) {
    prepared->outside_number = parts_->rows->outside->NumberOf(file.digest());
  }
  prepared->digest = file.digest();
  prepared->num_dense_left = header.num_dense_left;
  prepared->loaded = parts_->rows;
  try {
    for (const TableDelta& table : header.tables) {
      AddChanges(*parts_->rows, table, file.Read(table), &prepared->changes, &prepared->outside);
    }
    std::vector<MappingChange> mappings;
    for (const MappingDelta& mapping : header.mappings) {
      mappings.push_back(file.ReadMapping(mapping));
    }
    TensorMap dense;
    for (const DenseDelta& weight : header.dense) {
      at::Tensor numbers = at::empty(weight.shape, ScalarTypeOf(weight.dtype));
      file.ReadDense(weight, numbers.mutable_data_ptr());
      dense.emplace(weight.name, std::move(numbers));
    }
    const std::lock_guard<std::mutex> lock(parts_->rows->lock);
    // Check again: another delta may have been applied meanwhile.
    if (!header.Fits(parts_->rows->state_now)) ThrowState(header.base, *parts_->rows);
    prepared->base = parts_->rows->state_now;
    for (std::size_t i = 0; i < mappings.size(); ++i) {
      const std::string& name = header.mappings[i].name;
      LoadedTable* const table = FindMapped(parts_->rows.get(), name);
      BucketChange planned =
          PlanChange(table->slots(), table->is_owned, mappings[i], !header.replaces.empty(),
                     "delta: mapping of table " + Repr(name));
      prepared->changes.push_back(BucketsOf(*table, &planned));
      prepared->owned.push_back({table, std::move(planned.freed), std::move(planned.taken)});
    }
    for (const BlockChange& change : prepared->changes) change.Touch();
    if (!dense.empty()) {
      prepared->graphs = parts_->graphs->WithWeights(dense, signature(),
                                                     parts_->answers ? &*parts_->answers : nullptr);
    }
    Synchronize(prepared->changes);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kInternal, "there is too little memory");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kInternal,
                header.dense.empty() ? "there is too little memory" : error.what());
  }
  return prepared;
}

void Model::ApplyDelta(const PreparedDelta& delta) {
  LoadedRows& loaded = *parts_->rows;
  if (delta.loaded != parts_->rows) {
    throw Error(ErrorKind::kDelta, "delta: it was prepared for another model");
  }
  const c10::InferenceMode guard;
  const std::lock_guard<std::mutex> lock(loaded.lock);
  if (delta.base != loaded.state_now) ThrowState(delta.base, loaded);
  // Also where writing fails: what is held was computed of the rows before.
  if (parts_->context_cache != nullptr) parts_->context_cache->Clear();
  for (const BlockChange& change : delta.changes) change.Write();
  for (const OwnedChange& change : delta.owned) change.Write();
  if (loaded.outside != nullptr) {
    for (const OutsideChange& change : delta.outside) change.Write(loaded.outside.get());
    loaded.outside->SetState({delta.digest, delta.outside_number});
  }
  if (delta.graphs) parts_->graphs->Write(*delta.graphs);
  Synchronize(delta.changes);
  loaded.state_now = delta.digest;
}

std::optional<std::int64_t> Model::NumOwned(const std::string& table,
                                            const std::vector<std::int64_t>& raw_ids) const {
  LoadedRows& loaded = *parts_->rows;
  const LoadedTable* const mapped = FindMapped(&loaded, table);
  if (mapped == nullptr) return std::nullopt;
  // A delta may write the buckets meanwhile.
  const std::lock_guard<std::mutex> lock(loaded.lock);
  std::int64_t num_owned = 0;
  for (const std::int64_t raw_id : raw_ids) num_owned += RowOf(mapped->slots(), raw_id) >= 0;
  return num_owned;
}

std::int64_t Model::NumDenseLeft(const PreparedDelta& delta) { return delta.num_dense_left; }

}  // namespace recsys
