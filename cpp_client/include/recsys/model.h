#ifndef RECSYS_MODEL_H_
#define RECSYS_MODEL_H_

// Shape letters: B rows of a batch, F sparse inputs, N number of IDs, Q contexts of a batch.

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

/// How an artifact is opened.
struct ModelOptions {
  /// Which of the artifact's targets; empty for the first that this machine has the devices for.
  std::string target;
  /// Compare the digests of the rows, which reads every byte. Sizes, and digests of all other
  /// parts, are checked anyway.
  bool verify_checksums = true;
  /// Read the rows into memory of our own instead of mapping their file.
  bool copy_rows = false;
  /// Folder of fbgemm_gpu's libraries; empty for RECSYS_FBGEMM_PATH of the environment, or else the
  /// installed package beside the one of torch.
  std::string fbgemm_path;
};

/// Bags of all sparse inputs of a batch, key-major: all B lengths of the first input, then the
/// next.
struct SparseBatch {
  /// int64 [F * B]
  Span<std::int64_t> lengths;
  /// int64 [N]
  Span<std::int64_t> values;
  /// float32 [N]; only where the signature is weighted.
  Span<float> weights;
};

/// One batch, as the model's graph takes it. The memory is the caller's, writable, and stays until
/// Predict returns.
struct Batch {
  std::int64_t num_rows = 0;
  /// In the signature's order, [B, width] each; of a ranking batch [Q, width] for inputs of the
  /// context.
  std::vector<Span<float>> dense;
  /// All sparse inputs; of a ranking batch those that are not of the context.
  SparseBatch sparse;
  /// Whether it is for the ranking graph; what follows is only there.
  bool is_ranking = false;
  std::int64_t num_contexts = 0;
  SparseBatch context;
  /// int64 [B]: for each row the number of its context.
  Span<std::int64_t> row_context;
};

/// A batch's outputs, in the signature's order: float32, row-major [B, *shape] each. They live as
/// long as `owner`.
struct Outputs {
  std::vector<Span<const float>> values;
  std::shared_ptr<const void> owner;
};

/// What an artifact says of itself (docs/artifact.md); what only the loader needs is not here.
struct ModelDescription {
  std::string name;
  /// Twelve hexadecimal digits of the manifest's SHA-256.
  std::string digest;
  std::string target;
  std::string format_version;
  std::string torch_version;
  std::string fbgemm_version;
  /// Bytes of each table's rows.
  std::map<std::string, std::int64_t> table_bytes;
};

/// A delta that was read and checked against a model; to be applied while no batch runs.
class PreparedDelta;

/// An exported model, ready to predict. Any number of threads may call Predict at once.
class Model {
 public:
  /// What it is made of; of the library alone.
  struct Parts;

  /// Opens an artifact: a folder or a single file that recsys-export wrote.
  /// Throws Error: its kind says what is wrong, its text with which part; the texts are those of
  /// recsys/artifact.py.
  static Model Open(const std::string& path, const ModelOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const Signature& signature() const;
  const ModelDescription& description() const;

  /// Computes a batch that is right: a RequestChecker has passed its requests, a BatchWriter has
  /// put it together. Throws Error: kChecksum where somebody has written into the rows' file since
  /// it was opened, kExecution where the graph fails or returns something other than the signature
  /// says.
  Outputs Predict(const Batch& batch) const;

  /// Checks one request, puts it into a batch of its own and computes it: for programs that batch
  /// nothing. Throws Error as RequestChecker::Check and Predict do.
  Outputs Predict(const RawRequest& request) const;

  /// Which rows they are: the artifact's digest as loaded, else that of the last delta that was
  /// applied.
  std::string rows_state() const;
  /// Reads and checks a delta of recsys-export --delta. Throws Error (kDelta and others, texts of
  /// recsys/delta.py).
  std::shared_ptr<const PreparedDelta> PrepareDelta(const std::string& path) const;
  /// Exchanges rows in place. The caller sees to it that no batch runs meanwhile.
  void ApplyDelta(const PreparedDelta& delta);
  /// Dense weights that had changed when the delta was made, and that it leaves as they are.
  static std::int64_t NumDenseLeft(const PreparedDelta& delta);

 private:
  explicit Model(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Threads of torch within one operator, of the whole process; to be called before the first model
/// is opened.
void SetIntraOpThreads(int num_threads);

/// Reads and checks an artifact's manifest without loading it; throws Error.
ModelDescription DescribeArtifact(const std::string& path, Signature* signature = nullptr);

/// Sees that every part of an artifact is there and as long as its manifest says, and that `target`
/// (empty: any) is one of its targets that this machine has the devices for; throws Error.
void CheckArtifact(const std::string& path, const std::string& target);

}  // namespace recsys

#endif  // RECSYS_MODEL_H_
