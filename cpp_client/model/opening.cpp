#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "base/hash/sha256.h"
#include "base/log.h"
#include "base/text.h"
#include "format/file_name.h"
#include "model/answers.h"
#include "model/artifact_files.h"
#include "model/graphs/fbgemm.h"
#include "model/graphs/programs.h"
#include "model/graphs/skeleton.h"
#include "model/parts.h"
#include "model/rows/rows_memory.h"
#include "ops/cpu/isa.h"
#include "ops/torch/operators.h"
#include "recsys/error.h"

namespace recsys {
namespace {

ModelDescription DescriptionOf(const Manifest& manifest, const std::string& target) {
  ModelDescription found;
  found.name = manifest.name;
  found.digest = manifest.digest;
  found.target = target;
  found.format_version = std::to_string(manifest.format_version());
  found.torch_version = manifest.VersionOf("torch");
  found.fbgemm_version = manifest.VersionOf("fbgemm-gpu-cpu");
  if (found.fbgemm_version.empty()) found.fbgemm_version = manifest.VersionOf("fbgemm-gpu");
  for (const RowBlock& block : manifest.blocks) {
    found.table_bytes[block.table] += static_cast<std::int64_t>(block.num_bytes());
  }
  return found;
}

/// Compares the digests of the rows in memory.
void CheckRows(const LoadedRows& rows, const at::Tensor& blob) {
  const Manifest& manifest = rows.manifest;
  const char* data = static_cast<const char*>(blob.const_data_ptr());
  for (std::size_t i = 0; i < manifest.blocks.size(); ++i) {
    const RowBlock& block = manifest.blocks[i];
    if (rows.outside != nullptr && rows.outside->Find(block.offset_bytes).block >= 0) continue;
    const auto num_bytes = static_cast<std::size_t>(block.num_bytes());
    if (Sha256Hex({data + block.offset_bytes, num_bytes}) == manifest.block_sha256[i]) continue;
    throw Error(ErrorKind::kChecksum, "rows of table " + Repr(block.table) +
                                          ": the checksum does not match; they were changed");
  }
}

std::vector<FileDigest> DigestsOf(const Manifest& manifest) {
  std::vector<FileDigest> found;
  for (std::size_t i = 0; i < manifest.blocks.size(); ++i) {
    const RowBlock& block = manifest.blocks[i];
    const auto end = static_cast<std::int64_t>(block.offset_bytes + block.num_bytes());
    found.push_back({static_cast<std::int64_t>(block.offset_bytes), end, manifest.block_sha256[i]});
  }
  return found;
}

/// Opens a model step by step in the order of recsys/artifact/load.py, so that errors occur in the
/// same order.
class Opening {
 public:
  Opening(const std::string& path, const ModelOptions& options)
      : path_(path), options_(options), rows_(std::make_shared<LoadedRows>()) {
    if (options.context_cache_bytes > 0) {
      cache_ = std::make_shared<ops::ContextCache>(options.context_cache_bytes);
    }
  }

  std::unique_ptr<Model::Parts> Run();

  /// Returns how far a model that was opened is away from the answers that were verified; empty if
  /// it is near enough, or nothing tells.
  std::string Difference(const Model::Parts& parts) const;
  const Target& target() const { return *target_; }
  /// Whether its program was opened, and not TorchScript.
  bool runs_programs() const { return runs_programs_; }

 private:
  const Manifest& manifest() const { return rows_->manifest; }
  std::vector<const Graph*> Graphs() const {
    if (!target_->ranking) return {&target_->graph};
    return {&target_->graph, &*target_->ranking};
  }

  void LoadFolder();
  void LoadFile();
  std::string ReadPart(const std::string& name) const;
  void LoadMappings();
  /// Finds which rows lie outside the process. Throws Error (kConfig, kRowsMemory).
  void FindOutside();
  void LoadPrograms();
  bool HasPrograms() const;
  /// Returns whether the native kernels run the target; says in the log if a new export would let
  /// them. Throws Error (kTarget) if it needs them and has no program.
  bool RunsPrograms() const;
  /// Checks that there is TorchScript, which runs where no program does.
  void CheckScripted() const;

  const std::string& path_;
  const ModelOptions& options_;
  std::shared_ptr<LoadedRows> rows_;
  const Target* target_ = nullptr;
  bool runs_programs_ = false;
  std::vector<torch::jit::Module> modules_;
  /// Set instead of modules.
  std::optional<LoadedGraphs> programs_;
  /// Of contexts; null for none.
  std::shared_ptr<ops::ContextCache> cache_;
  at::Tensor blob_;
};

/// Returns the bytes of a part with a graph.
std::string Opening::ReadPart(const std::string& name) const {
  const Part& part = *manifest().FindSkeleton(name);
  const bool is_folder = IsArtifactFolder(path_);
  const std::string file = path_ + "/" + part.path;
  if (is_folder) CheckPartSize(file, part.size_bytes);
  // Always checked: it is small, and a damaged graph can crash the process, while damaged rows only
  // give wrong numbers.
  std::string bytes = is_folder ? FileBytes(file) : ExtraFile(path_, part.path);
  if (Sha256Hex(bytes) != part.sha256) throw ChangedPart(part.path);
  return bytes;
}

bool Opening::HasPrograms() const {
  const std::vector<const Graph*> graphs = Graphs();
  return std::all_of(graphs.begin(), graphs.end(),
                     [](const Graph* graph) { return !graph->program.empty(); });
}

bool Opening::RunsPrograms() const {
  const bool is_on_cpu = std::all_of(target_->device_names.begin(), target_->device_names.end(),
                                     [](const std::string& name) { return name == "cpu"; });
  if (options_.scripted || !is_on_cpu || target_->dense_dtype != "float32") return false;
  if (HasPrograms()) return true;
  if (target_->graph.skeleton.empty()) return false;
  const std::string target = "target " + Repr(target_->name);
  const std::string& dtype = target_->linear_dtype;
  if (dtype != "float32") {
    throw Error(ErrorKind::kTarget, target + ": needs linear layers in " + dtype +
                                        ", but holds no program, which alone multiplies in it: " +
                                        "run recsys-export --linear-dtype " + dtype + " again");
  }
  Log(LogLevel::kInfo, target +
                           ": holds no program, so torch's operators run it: recsys-export makes "
                           "a program, which the native kernels run faster, or its report says "
                           "why there is none");
  return false;
}

void Opening::CheckScripted() const {
  if (!target_->graph.skeleton.empty()) return;
  const std::string reason = HasPrograms() ? "TorchScript is asked for" : "no program";
  throw Error(ErrorKind::kTarget,
              "target " + Repr(target_->name) + ": holds no TorchScript, and " + reason +
                  "; run recsys-export --format both (an ExportedProgram is run by "
                  "load_exported_artifact in Python alone)");
}

void Opening::LoadMappings() {
  for (const MappingInfo& info : manifest().mappings) {
    rows_->mappings.push_back(LoadMapping(info, ReadPart(info.part)));
  }
}

void Opening::FindOutside() {
  const OutsideRowsOptions& options = options_.outside;
  if (options.nodes.empty()) return;
  const std::string at = "rows: got nodes for target " + Repr(target_->name) + ", ";
  if (!runs_programs_ || !IsArtifactFolder(path_)) {
    throw Error(ErrorKind::kConfig,
                at + "which reads all of its rows in memory: it needs a folder with a program, "
                     "which the native kernels run on the CPU");
  }
  if (options_.copy_rows || options_.lock_rows) {
    throw Error(ErrorKind::kConfig,
                at + "and copy_rows or lock_rows, which need all rows in memory");
  }
  const std::map<std::string, std::int64_t> table_bytes =
      DescriptionOf(manifest(), target_->name).table_bytes;
  for (const std::string& table : options.zero_tables) {
    if (table_bytes.count(table) > 0) continue;
    throw Error(ErrorKind::kConfig, "rows_zero: got " + Short(table) + ", which is no table");
  }
  std::vector<StoredBlock> blocks;
  for (const RowBlock& block : manifest().blocks) {
    if (table_bytes.at(block.table) <= options.over_bytes) continue;
    const bool is_zero = std::find(options.zero_tables.begin(), options.zero_tables.end(),
                                   block.table) != options.zero_tables.end();
    blocks.push_back({block.table, block.column_start, block.row_start, block.num_rows(),
                      static_cast<std::int64_t>(block.row_bytes()), block.offset_bytes, is_zero});
  }
  if (blocks.empty()) {
    Log(LogLevel::kWarning, at + "but no table has more than rows_over_bytes: none is read there");
    return;
  }
  // What was computed of zeros is not to be kept.
  const auto on_zeros = [cache = cache_] {
    if (cache != nullptr) cache->Clear();
  };
  rows_->outside = std::make_shared<StoredRows>(
      options, StoredRows::Artifact{manifest().name, manifest().digest}, std::move(blocks),
      on_zeros);
}

void Opening::LoadPrograms() {
  ProgramForms programs;
  for (const Graph* graph : Graphs()) {
    // Not needed, but what was damaged is told before it is.
    if (!graph->skeleton.empty() && IsArtifactFolder(path_)) {
      const Part& script = *manifest().FindSkeleton(graph->skeleton);
      CheckPartSize(path_ + "/" + script.path, script.size_bytes);
      if (options_.verify_checksums) ReadPart(graph->skeleton);
    }
    programs.parts.emplace_back(graph->program, ReadPart(graph->program));
  }
  programs.rows = blob_;
  programs.outside = rows_->outside;
  programs.linear_dtype = target_->linear_dtype;
  if (target_->ranking) programs.contexts = ContextInputsOf(manifest().signature, cache_);
  programs_.emplace(std::move(programs), SlotsByPath(rows_->mappings));
}

void Opening::LoadFolder() {
  if (!manifest().rows_path) {
    throw Error(ErrorKind::kManifest,
                "manifest.rows.path: got null in a directory, expected the rows' file name");
  }
  const std::string file = path_ + "/" + *manifest().rows_path;
  const std::int64_t num_bytes = manifest().rows_bytes;
  CheckPartSize(file, num_bytes);
  rows_->file = std::make_unique<RowsFile>(file, DigestsOf(manifest()));
  blob_ = rows_->file->Held(num_bytes, options_);
  if (options_.copy_rows) rows_->file.reset();
  if (options_.verify_checksums) CheckRows(*rows_, blob_);
  if (runs_programs_) return LoadPrograms();
  for (const Graph* graph : Graphs()) {
    modules_.push_back(LoadScript(ReadPart(graph->skeleton), graph->skeleton));
  }
}

void Opening::LoadFile() {
  const std::string name = Repr(NameOfPath(path_));
  CheckMembers(path_, options_.verify_checksums ? -1 : manifest().rows_bytes);
  modules_.push_back(LoadScriptFile(path_));
  if (target_->graph.rows.empty()) {
    throw Error(ErrorKind::kManifest,
                "manifest.targets: " + name + " holds no rows where the manifest says");
  }
  blob_ = TensorAt(modules_[0], target_->graph.rows[0].first);
  if (blob_.numel() != manifest().rows_bytes || blob_.scalar_type() != at::kByte ||
      !blob_.is_contiguous()) {
    throw Error(ErrorKind::kPartSize, "rows of " + name + ": got " + std::to_string(blob_.numel()) +
                                          " bytes, expected " +
                                          std::to_string(manifest().rows_bytes));
  }
  blob_ = blob_.view({-1});
  if (options_.verify_checksums) CheckRows(*rows_, blob_);
  if (!options_.numa.empty()) {
    throw Error(ErrorKind::kRowsMemory, "numa: got " + Repr(options_.numa) + " for " + name +
                                            ", whose rows torch places; expected a directory");
  }
  if (options_.lock_rows) LockRows(blob_);
  if (!runs_programs_) return;
  LoadPrograms();
  modules_.clear();
}

std::unique_ptr<Model::Parts> Opening::Run() {
  CheckRowsMemory(options_);
  rows_->manifest = ManifestAt(path_);
  target_ = &ChooseTarget(manifest(), options_.target);
  runs_programs_ = RunsPrograms();
  if (!runs_programs_) CheckScripted();
  LoadFbgemm(options_.fbgemm_path);
  LoadMappings();
  FindOutside();
  if (IsArtifactFolder(path_)) {
    LoadFolder();
  } else {
    LoadFile();
  }
  rows_->ranks = RankRows(manifest(), *target_, blob_);
  bool in_place = false;
  for (const DeviceRows& rank : rows_->ranks) in_place = in_place || rank.rows.is_same(blob_);
  if (!in_place) rows_->file.reset();
  const std::vector<const Graph*> graphs = Graphs();
  const TensorMap slots = SlotsByPath(rows_->mappings);
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    Place(&modules_[i], *graphs[i], rows_->ranks);
    PlaceMappings(modules_[i], slots);
  }
  for (std::size_t i = 1; i < modules_.size(); ++i) Share(modules_[0], &modules_[i]);
  auto parts = std::make_unique<Model::Parts>();
  parts->description = DescriptionOf(manifest(), target_->name);
  for (const DeviceRows& rank : rows_->ranks) {
    if (rank.rows.is_same(blob_)) parts->description.rows_pages = PagesOf(blob_);
  }
  rows_->digest = rows_->state_now = parts->description.digest;
  if (programs_) {
    parts->graphs = std::move(programs_);
  } else {
    parts->graphs.emplace(std::move(modules_), target_->plan, slots);
  }
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  parts->checker.emplace(manifest().signature, RequestLimits{kAny, kAny, kAny});
  parts->rows = std::move(rows_);
  parts->context_cache = std::move(cache_);
  const Json& answers = parts->rows->manifest.answers;
  if (answers.is_object() && !answers.empty()) {
    parts->answers.emplace(answers, parts->signature());
  }
  return parts;
}

std::string Opening::Difference(const Model::Parts& parts) const {
  return parts.answers ? parts.answers->Difference(*parts.graphs) : std::string();
}

/// Says in which type linear layers multiply where it is not the target's.
void LogProducts(const Target& target) {
  const std::string type = ops::MultipliesIn(target.linear_dtype);
  if (type == target.linear_dtype) return;
  Log(LogLevel::kInfo, "target " + Repr(target.name) + ": linear layers in " + target.linear_dtype +
                           " multiply in " + type + " here: " + ops::NameOf(ops::ChosenIsa()) +
                           " has no faster instruction for their products");
}

/// Says why kernels do not use the tiles that the processor has, if so.
void LogTiles(const Target& target) {
  const std::string why = ops::WhyNoTiles();
  if (why.empty()) return;
  Log(LogLevel::kInfo, "target " + Repr(target.name) + ": linear layers multiply by " +
                           ops::NameOf(ops::ChosenIsa()) + ", not by amx: " + why);
}

/// Forgets what was computed while the model was opened; says why no context will be kept, if so.
void StartContextCache(Model::Parts* parts) {
  if (parts->context_cache == nullptr) return;
  parts->context_cache->Clear();
  parts->context_cache->ResetCounts();
  const std::string why = parts->graphs->why_no_context_cache();
  if (why.empty()) return;
  parts->context_cache.reset();
  Log(LogLevel::kInfo,
      "target " + Repr(parts->description.target) + ": context_cache_bytes is not used: " + why);
}

/// Opens a model with its program if that answers as it was verified; else with TorchScript.
std::unique_ptr<Model::Parts> OpenChecked(const std::string& path, const ModelOptions& options) {
  Opening opening(path, options);
  std::unique_ptr<Model::Parts> parts = opening.Run();
  if (!opening.runs_programs()) return parts;
  LogProducts(opening.target());
  LogTiles(opening.target());
  std::string difference = opening.Difference(*parts);
  if (difference.empty()) return parts;
  const std::string target = "target " + Repr(opening.target().name) + ": ";
  const std::string found =
      "its program answers otherwise than the export verified (" + difference + ")";
  const bool is_float = opening.target().linear_dtype == "float32" && options.outside.nodes.empty();
  if (!is_float || opening.target().graph.skeleton.empty()) {
    throw Error(ErrorKind::kTarget, target + found +
                                        ", and nothing else of it can run: export it on this "
                                        "machine, or with " +
                                        (is_float ? "--format both" : "--linear-dtype float32"));
  }
  parts.reset();
  ModelOptions plain = options;
  plain.scripted = true;
  Opening again(path, plain);
  parts = again.Run();
  difference = again.Difference(*parts);
  if (!difference.empty()) {
    throw Error(ErrorKind::kTarget, target + "it answers otherwise than the export verified (" +
                                        difference +
                                        "): export it with the torch and fbgemm-gpu of this "
                                        "machine");
  }
  Log(LogLevel::kWarning,
      target + found + ": its TorchScript graph is loaded instead, which is slower");
  return parts;
}

/// Runs `step`; converts exceptions from torch or the system into Error.
template <typename Step>
auto Guarded(Step step) {
  try {
    return step();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::kInternal, "there is too little memory");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kInternal, error.what());
  }
}

}  // namespace

Model Model::Open(const std::string& path, const ModelOptions& options) {
  return Guarded([&] {
    std::unique_ptr<Parts> parts = OpenChecked(path, options);
    StartContextCache(parts.get());
    return Model(std::move(parts));
  });
}

void SetIntraOpThreads(int num_threads) { at::set_num_threads(num_threads); }

ModelDescription DescribeArtifact(const std::string& path, Signature* signature) {
  return Guarded([&] {
    const Manifest manifest = ManifestAt(path);
    if (signature != nullptr) *signature = manifest.signature;
    return DescriptionOf(manifest, "");
  });
}

void CheckArtifact(const std::string& path, const std::string& target) {
  Guarded([&] {
    const Manifest manifest = ManifestAt(path);
    CheckAllSizes(path, manifest);
    ChooseTarget(manifest, target);
  });
}

}  // namespace recsys
