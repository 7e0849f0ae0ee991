#ifndef RECSYS_REQUEST_H_
#define RECSYS_REQUEST_H_

// A request before and after its checks. Nothing is copied: the views point into the wire's bytes,
// which the caller keeps alive. Shape letters: B rows of a request, N number of IDs of one input.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "recsys/signature.h"
#include "recsys/span.h"

namespace recsys {

/// One dense input as received: little-endian float32, row-major [B, width].
struct RawDense {
  std::string_view name;
  std::string_view values;
};

/// Texts that a sparse input has in place of its IDs: taken one by one from where they lie.
struct RawTexts {
  /// Takes the first text off `bytes`, which hold at least one.
  using Take = std::string_view (*)(std::string_view* bytes);

  std::string_view bytes = {};
  std::int64_t num_texts = 0;
  Take take = nullptr;

  /// `texts` itself must stay valid too, not only what it views.
  static RawTexts Of(Span<const std::string_view> texts);

  template <typename Call>
  void ForEach(Call call) const {
    std::string_view rest = bytes;
    for (std::int64_t i = 0; i < num_texts; ++i) call(take(&rest));
  }
};

/// One sparse input as received: lengths int32 [B], values int64 [N], weights float32 [N] or empty;
/// little-endian. In place of values, N texts.
struct RawSparse {
  std::string_view name;
  std::string_view lengths;
  std::string_view values;
  std::string_view weights;
  RawTexts texts = {};
};

/// An unchecked request, as every protocol delivers it. Context inputs have one row, which applies
/// to all rows of the request.
struct RawRequest {
  /// Makes it a request of no rows and no inputs; keeps its vectors' memory.
  void Clear() {
    num_rows = 0;
    for (auto* const inputs : {&dense, &context_dense}) inputs->clear();
    for (auto* const inputs : {&sparse, &context_sparse}) inputs->clear();
  }

  std::int64_t num_rows = 0;
  std::vector<RawDense> dense;
  std::vector<RawSparse> sparse;
  std::vector<RawDense> context_dense;
  std::vector<RawSparse> context_sparse;
};

/// A dense input of a checked request: `rows` rows of its width, possibly unaligned.
struct DenseView {
  const char* values = nullptr;
  /// One row that applies to all rows of the request; the batch writer repeats it.
  bool repeat = false;
};

/// A sparse input of a checked request, possibly unaligned.
struct SparseView {
  /// int32, one for each bag.
  const char* lengths = nullptr;
  /// int64 [num_ids].
  const char* values = nullptr;
  /// float32 [num_ids]; null if the input is not weighted: 1.0 for each.
  const char* weights = nullptr;
  /// IDs in the bags stored here; if repeated, in one bag.
  std::int64_t num_ids = 0;
  /// One bag that applies to all rows of the request.
  bool repeat = false;
};

/// A request that matches the signature: safe for the batch writer and for native operators.
struct CheckedRequest {
  std::int64_t num_rows = 0;
  /// In the signature's order. If has_context, context inputs have one row.
  std::vector<DenseView> dense;
  /// The sparse inputs in the signature's order; if has_context, without those in `context`.
  std::vector<SparseView> sparse;
  /// The signature's sparse context inputs in its order, one bag each; only if has_context.
  std::vector<SparseView> context;
  /// Whether it runs in the ranking graph.
  bool has_context = false;
  /// Number of IDs looked up, repetitions included.
  std::int64_t num_ids = 0;
  /// Bytes that inputs given once and repeated for every row take in the batch.
  std::int64_t spread_bytes = 0;
  /// The IDs that texts stand for, where the views point to them. Copies share them.
  std::vector<std::shared_ptr<const std::int64_t[]>> ids_of_texts = {};
};

/// Maximum rows, IDs and bytes of one request.
struct RequestLimits {
  std::int64_t max_rows = 0;
  std::int64_t max_ids = 0;
  std::int64_t max_bytes = 0;
};

/// The IDs that a sparse input takes.
struct IdBound {
  /// Compared as unsigned numbers, so that negative IDs exceed it too.
  std::uint64_t largest = 0;
  /// The short names of the tables that set it, for messages.
  std::string tables = {};
};

/// Checks requests for one model. Thread-safe: keeps no state of a request.
class RequestChecker {
 public:
  RequestChecker(Signature signature, RequestLimits limits, bool allow_non_finite = false);

  /// Throws Error (kRequest, kRequestTooLarge) with the texts of
  /// serve/engine/reference/request_check.py. Fills `checked`, reusing its vectors' memory; its
  /// views point into the same bytes as those of `request`.
  void Check(const RawRequest& request, CheckedRequest* checked) const;

  /// Returns the first ID of a sparse input of a request that was checked here; none if it has no
  /// ID, or the model no such input.
  std::optional<std::int64_t> FirstId(const CheckedRequest& checked, std::string_view name) const;

  const Signature& signature() const { return signature_; }
  const RequestLimits& limits() const { return limits_; }
  bool allow_non_finite() const { return allow_non_finite_; }

 private:
  Signature signature_;
  RequestLimits limits_;
  bool allow_non_finite_;
  /// Per sparse input.
  std::vector<IdBound> id_bounds_;
  /// Whether each input belongs to the context; whether any does.
  std::vector<bool> dense_in_context_, sparse_in_context_;
  /// By input, the one whose lengths it has.
  std::vector<std::optional<std::size_t>> same_lengths_as_;
  bool has_same_lengths_ = false;
  bool has_context_;
  bool is_weighted_;
  /// Positions in the signature, in the order of the names.
  std::vector<std::uint32_t> dense_by_name_, sparse_by_name_;

  friend class RequestCheck;
};

}  // namespace recsys

#endif  // RECSYS_REQUEST_H_
