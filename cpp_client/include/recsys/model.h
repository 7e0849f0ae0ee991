#ifndef RECSYS_MODEL_H_
#define RECSYS_MODEL_H_

// Shape letters: B rows of a batch, F sparse inputs, N number of IDs, Q contexts of a batch.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recsys/request.h"
#include "recsys/signature.h"
#include "recsys/span.h"

namespace recsys {

/// Rows of large tables that are read from Redis or Valkey nodes, which `recsys-export --push-rows`
/// has filled.
struct OutsideRowsOptions {
  /// "host:port" of each node, in the order in which they were filled; empty reads all rows from
  /// the artifact.
  std::vector<std::string> nodes;
  /// A replica of each node, in the same order, or none.
  std::vector<std::string> replicas;
  /// Tables of more bytes are read there.
  std::int64_t over_bytes = std::int64_t{1} << 30;
  /// Bytes of memory for rows that are read often.
  std::int64_t cache_bytes = std::int64_t{256} << 20;
  /// How long a batch waits for its rows, in milliseconds.
  std::int64_t deadline_ms = 20;
  /// How long it waits before it asks the replicas too, in milliseconds.
  std::int64_t hedge_ms = 5;
  /// Tables whose rows count as zeros where they cannot be read; others fail the batch.
  std::vector<std::string> zero_tables;
};

/// Options for opening an artifact.
struct ModelOptions {
  /// The artifact's target; empty selects the first one that this machine has the devices for.
  std::string target;
  /// Compare the digests of the rows, which reads every byte, and of TorchScript that a program
  /// runs in place of. Sizes, and the digests of what runs, are always checked.
  bool verify_checksums = true;
  /// Read the rows into memory, on huge pages where the system has them, instead of mapping their
  /// file.
  bool copy_rows = false;
  /// Lock the rows in memory.
  bool lock_rows = false;
  /// NUMA nodes of copied rows: "interleave" over all, "local" to the thread that opens them, empty
  /// for the system's choice.
  std::string numa;
  /// Read mapped rows from the file in single pages, without their neighbours: for rows that exceed
  /// the memory.
  bool random_access = false;
  /// Folder of fbgemm_gpu's libraries; empty uses the environment's RECSYS_FBGEMM_PATH, or else the
  /// package installed next to torch.
  std::string fbgemm_path;
  /// Run the TorchScript graph by torch's operators in float32, also where the program could run.
  bool scripted = false;
  /// Rows that are read from other servers.
  OutsideRowsOptions outside;
  /// Bytes of memory for what the program computes of contexts alone: a context that comes again is
  /// not computed again. 0 keeps nothing.
  std::int64_t context_cache_bytes = 0;
};

/// Bags of all sparse inputs of a batch, key-major: all B lengths of the first input, then those of
/// the next.
struct SparseBatch {
  /// int64 [F * B]
  Span<std::int64_t> lengths;
  /// int64 [N]
  Span<std::int64_t> values;
  /// float32 [N]; only if the signature is weighted.
  Span<float> weights;
};

/// What a model computes of a context alone, for batches that have no other context: the parts of
/// one request.
class SharedContext {
 public:
  /// Null for none.
  using Values = std::shared_ptr<const float[]>;

  virtual ~SharedContext() = default;
  /// Returns what was added; null if the caller computes it for its batch, and then adds it.
  virtual Values Find() const = 0;
  /// Called by Model::Predict before it computes what differs by rows.
  virtual void Add(Values values) = 0;
};

/// One batch in the layout of the model's graph. The caller owns the memory, which must be writable
/// and stay valid until Predict returns.
struct Batch {
  std::int64_t num_rows = 0;
  /// In the signature's order, [B, width] each; in a ranking batch, [Q, width] for context inputs.
  std::vector<Span<float>> dense;
  /// All sparse inputs; in a ranking batch, those outside the context.
  SparseBatch sparse;
  /// Whether it is for the ranking graph; the fields below are only set if it is.
  bool is_ranking = false;
  std::int64_t num_contexts = 0;
  SparseBatch context;
  /// int64 [B]: for each row, the index of its context.
  Span<std::int64_t> row_context;
  /// Set if other batches have the same context, the only one of this batch: what is computed of
  /// it alone is found there, or added.
  SharedContext* shared = nullptr;
};

/// A batch's outputs, in the signature's order: row-major [B, *shape] each. Valid as long as
/// `owner` lives.
struct Outputs {
  /// The float32 outputs; empty where an output is int64.
  std::vector<Span<const float>> values;
  /// The int64 outputs; empty where an output is float32, and without any int64 output.
  std::vector<Span<const std::int64_t>> integers;
  std::shared_ptr<const void> owner;
};

/// The pages of rows in host memory, after loading.
struct RowsPages {
  /// In memory. Pages of mapped rows are read on demand.
  std::int64_t resident_bytes = 0;
  /// The part on huge pages.
  std::int64_t huge_bytes = 0;
  /// The part that is locked.
  std::int64_t locked_bytes = 0;
};

/// Rows that the export of a model has verified: a model takes them, also where it does not take
/// zeros or any ID.
struct VerifiedRows {
  /// B; 0 if the artifact holds none.
  std::int64_t num_rows = 0;
  /// In the signature's order, row-major [B, width] each.
  std::vector<std::vector<float>> dense;
  /// The lengths of all sparse inputs, key-major [F * B].
  std::vector<std::int64_t> lengths;
  /// [N]
  std::vector<std::int64_t> values;
  /// [N]; only if the signature is weighted.
  std::vector<float> weights;
};

/// Describes an artifact (docs/export/artifact.md), without the fields that only the loader needs.
struct ModelDescription {
  std::string name;
  /// First twelve hexadecimal digits of the manifest's SHA-256.
  std::string digest;
  std::string target;
  std::string format_version;
  std::string torch_version;
  std::string fbgemm_version;
  /// Bytes of each table's rows.
  std::map<std::string, std::int64_t> table_bytes;
  /// Set for an open model; zeros if all rows are on other devices.
  RowsPages rows_pages;
};

/// What happened to the contexts of ranking batches in a cache, and what it holds.
struct ContextCacheCounts {
  /// Contexts whose values were there, and those that were computed. Equal contexts of a batch are
  /// one.
  std::int64_t hits = 0, misses = 0;
  /// Contexts whose values were dropped to make room.
  std::int64_t evictions = 0;
  /// Contexts held now, and the bytes that they take.
  std::int64_t entries = 0, bytes = 0;
  /// Contexts that were computed from what was held of them before their bags grew; misses too.
  std::int64_t grown = 0;
};

/// What was read of the rows outside the process.
struct OutsideRowsCounts {
  /// Upper bounds of the buckets of seconds.
  static constexpr std::array<double, 12> kSeconds{1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                                   1e-2, 2e-2, 5e-2, 0.1,  0.2,  0.5};
  /// Rows of batches, each counted once a batch, that the cache held, and those that it did not.
  std::int64_t hits = 0, misses = 0;
  /// Bytes that the cache holds now, and bytes that came from nodes.
  std::int64_t cache_bytes = 0, read_bytes = 0;
  /// Reads of nodes that failed, and reads that replicas were asked for too.
  std::int64_t failures = 0, hedged = 0;
  /// Rows that were answered as zeros.
  std::int64_t zeros = 0;
  /// Times of batches' reads, by bucket, the last one above all bounds; and their sum.
  std::array<std::int64_t, kSeconds.size() + 1> seconds{};
  double seconds_sum = 0;
};

/// A delta read and checked against a model; to be applied while no batch runs.
class PreparedDelta;

/// An exported model, ready to predict. Any number of threads may call Predict concurrently.
class Model {
 public:
  /// The model's parts; private to the library.
  struct Parts;

  /// Opens an artifact: a folder or a single file written by recsys-export. Throws Error: its kind
  /// says what is wrong, its text names the part; the texts are those of recsys/artifact/load.py.
  static Model Open(const std::string& path, const ModelOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const Signature& signature() const;
  const ModelDescription& description() const;
  /// For programs that warm the model up.
  const VerifiedRows& verified_rows() const;

  /// Whether a batch's `shared` is used: the model's program computes something of contexts alone.
  bool shares_contexts() const;
  /// Returns zeros without a cache.
  ContextCacheCounts context_cache() const;
  /// Counts hits, misses and evictions from 0 on: for programs that have warmed the model up.
  void ResetContextCacheCounts();

  /// Returns zeros if all rows are in memory.
  OutsideRowsCounts outside_rows() const;

  /// Computes a valid batch: its requests passed a RequestChecker, and a BatchWriter assembled it.
  /// One without rows reaches no graph: its outputs are empty.
  /// Throws Error: kChecksum if the rows' file was modified since it was opened, kRequest if an ID
  /// that the model computes is no row of its table, kExecution if the graph fails otherwise or its
  /// outputs do not match the signature.
  Outputs Predict(const Batch& batch) const;

  /// Checks one request and computes it as a batch of its own: for programs that do no batching.
  /// Throws Error as RequestChecker::Check and Predict do.
  Outputs Predict(const RawRequest& request) const;

  /// Identifies the current rows: the digest of the artifact as loaded, or of the last delta
  /// applied.
  std::string rows_state() const;
  /// Reads and checks a delta of recsys-export --delta. Throws Error (kDelta and others, texts of
  /// recsys/artifact/delta/apply.py).
  std::shared_ptr<const PreparedDelta> PrepareDelta(const std::string& path) const;
  /// Replaces rows in place, and the graphs if dense weights change. The caller must ensure that no
  /// batch runs meanwhile.
  void ApplyDelta(const PreparedDelta& delta);
  /// Returns how many of the raw IDs own a row of a managed table now; not set if the artifact
  /// keeps no mapping of that table beside its rows. `table`: its name in the signature.
  std::optional<std::int64_t> NumOwned(const std::string& table,
                                       const std::vector<std::int64_t>& raw_ids) const;
  /// Returns how many dense weights had also changed when the delta was made, and are left as they
  /// are.
  static std::int64_t NumDenseLeft(const PreparedDelta& delta);

 private:
  explicit Model(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Sets the number of threads torch uses within one operator, for the whole process; call it before
/// the first model is opened.
void SetIntraOpThreads(int num_threads);

/// Reads and checks an artifact's manifest without loading it; throws Error.
ModelDescription DescribeArtifact(const std::string& path, Signature* signature = nullptr);

/// Checks that every part of an artifact exists and has the size its manifest states, and that
/// `target` (empty: any) is one of its targets that this machine has the devices for; throws Error.
void CheckArtifact(const std::string& path, const std::string& target);

}  // namespace recsys

#endif  // RECSYS_MODEL_H_
