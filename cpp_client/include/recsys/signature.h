#ifndef RECSYS_SIGNATURE_H_
#define RECSYS_SIGNATURE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace recsys {

/// How an ID outside 0 <= id < num_embeddings is handled (recsys/inputs/signature.py).
enum class IdPolicy { kReject, kHash, kZero, kMapped, kFmix64 };

/// A float32 input [B, width].
struct DenseInput {
  std::string name;
  std::int64_t width = 0;
  /// Whether NaN stands for a missing number, which the model fills.
  bool missing = false;
  /// The names of a row's numbers, in their order; empty if they are not known.
  std::vector<std::string> columns = {};
};

/// A table in which a sparse input is looked up.
struct TableUse {
  std::string name;
  std::int64_t num_embeddings = 0;
  IdPolicy id_policy = IdPolicy::kReject;
};

/// A jagged input of int64 IDs, B bags of any length.
struct SparseInput {
  std::string name;
  std::vector<TableUse> tables;
  /// "sum", "mean" or "none".
  std::string pooling;
  bool weighted = false;
  /// The hash that turns a text into an ID, "xxh64"; empty if texts are decimal int64 numbers.
  std::string strings = {};
  /// IDs in each bag of a row that the model takes; not set where made rows with bags of any size
  /// do.
  std::optional<std::int64_t> num_ids = {};
  /// Whether bags with another number of IDs than num_ids are refused.
  bool fixed = false;
  /// The most IDs of a bag: more are refused. Not set where bags have any size.
  std::optional<std::int64_t> max_ids = {};
  /// The input, before this one, whose bags have as many IDs as this one's, row by row, because the
  /// model puts the IDs of both side by side; empty where lengths may differ.
  std::string same_lengths_as = {};
  /// What stands between the values of the lists that tables of the training hold as texts; empty
  /// where they hold none. A request gives each value as a text of its own.
  std::string separator = {};

  /// Exclusive upper bound of the IDs, set by the smallest table that rejects; not set if every ID
  /// is accepted.
  std::optional<std::int64_t> id_limit() const;
};

/// The type of an output's numbers. Integers and bools of a model are int64.
enum class OutputType { kFloat32, kInt64 };

/// An output, [B, *shape] for most.
struct Output {
  std::string name;
  /// Without the batch dimensions.
  std::vector<std::int64_t> shape;
  OutputType type = OutputType::kFloat32;
  /// The dimensions of size B, ascending: 0 and 1 for [B, B], none for an output that has no rows.
  /// Others than 0 alone only where a batch is one request.
  std::vector<std::int64_t> batch_dims = {0};

  /// Calls `call` with each size of the whole shape for a number of rows, in order.
  template <typename Call>
  void ForEachSize(std::int64_t num_rows, Call call) const {
    std::size_t num_batch_dims = 0, num_sizes = 0;
    while (num_batch_dims + num_sizes < batch_dims.size() + shape.size()) {
      const auto dim = static_cast<std::int64_t>(num_batch_dims + num_sizes);
      if (num_batch_dims < batch_dims.size() && batch_dims[num_batch_dims] == dim) {
        ++num_batch_dims;
        call(num_rows);
      } else {
        call(shape[num_sizes++]);
      }
    }
  }
  /// The whole shape for a number of rows.
  std::vector<std::int64_t> Dims(std::int64_t num_rows) const;
  /// Number of elements for a number of rows.
  std::int64_t num_elements(std::int64_t num_rows) const;
  /// Bytes of an element.
  std::size_t element_bytes() const { return type == OutputType::kInt64 ? 8 : 4; }
};

/// A model's inputs and outputs; recsys/inputs/signature.py defines what its graph takes, in which
/// order.
struct Signature {
  std::vector<DenseInput> dense;
  std::vector<SparseInput> sparse;
  std::vector<Output> outputs;
  /// Names of inputs that a ranking request may give once at no extra cost.
  std::vector<std::string> context;
  /// Whether a batch is one request, because its rows may depend on each other: it is never put
  /// together with others.
  bool by_request = false;

  /// Whether the graph takes weights, that is, whether any sparse input is weighted.
  bool is_weighted() const;
  /// Whether any output is int64.
  bool has_integers() const;
  /// The first output without a batch dimension, which no batch without rows tells; null for most
  /// models.
  const Output* without_rows() const;
  bool InContext(const std::string& name) const;
  /// The position of the input whose lengths an input has; nothing for most.
  std::optional<std::size_t> SameLengthsAs(const SparseInput& input) const;
};

}  // namespace recsys

#endif  // RECSYS_SIGNATURE_H_
