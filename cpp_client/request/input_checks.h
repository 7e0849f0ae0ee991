#ifndef RECSYS_REQUEST_INPUT_CHECKS_H_
#define RECSYS_REQUEST_INPUT_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/wide.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// Throws Error (kRequestTooLarge) if a request exceeds the limits.
void CheckSizes(const RequestLimits& limits, std::int64_t num_rows, Wide num_ids, Wide num_bytes);

/// Returns the index of the first of `num` little-endian float32 that is not finite; `num` if all
/// are.
std::int64_t FirstNonFinite(const char* floats, std::int64_t num);

/// Returns the index of the first infinity; `num` if there is none.
std::int64_t FirstInfinite(const char* floats, std::int64_t num);

/// Returns `nan`, `inf` or `-inf`, as numpy writes them.
std::string NonFiniteText(const char* floats, std::int64_t at);

/// Checks one dense input.
struct DenseCheck {
  const DenseInput& input;
  std::int64_t num_rows;
  /// Whether it was given once for all rows; for messages.
  bool once;

  /// Throws Error (kRequest).
  void Run(std::string_view values, bool allow_non_finite) const;
};

/// An input that must have the lengths of another one, by their positions in the signature, and the
/// request's field, for messages.
struct SameLengths {
  const char* field;
  std::size_t input, other;
};

/// The lengths of an input's bags, int32; of one bag for all rows.
struct BagLengths {
  const char* lengths;
  bool once;
};

/// Checks that an input has as many IDs as another one, row by row. Throws Error (kRequest).
void CheckSameLengths(const Signature& signature, const SameLengths& same, BagLengths lengths,
                      BagLengths others, std::int64_t num_rows);

/// Checks the sparse inputs of one request that have the same number of bags: each step runs for
/// all inputs in the signature's order before the next step. Throws Error (kRequest,
/// kRequestTooLarge).
class SparseCheck {
 public:
  SparseCheck(const Signature& signature, const std::vector<IdBound>& id_bounds,
              const RequestLimits& limits, bool finite)
      : signature_(signature), id_bounds_(id_bounds), limits_(limits), finite_(finite) {}

  /// `field`: the request's field, for messages.
  void Start(const char* field, std::int64_t num_rows);
  /// Checks sizes in bytes; fills the view, without the IDs of texts.
  void Size(std::size_t input, const RawSparse& raw, SparseView* view);
  void Total() const;
  void Lengths(std::size_t input, const SparseView& view);
  /// Reports a wrong sum of lengths only now: a negative length in any input takes precedence.
  void EndOfLengths() const;
  /// Refuses bags of another size than the input's, if it has one.
  void FixedLengths(std::size_t input, const SparseView& view) const;
  /// Refuses bags of more IDs than the input's, if it has such a number.
  void MostIds(std::size_t input, const SparseView& view) const;
  /// Number of texts of all inputs.
  std::int64_t num_texts() const { return num_texts_; }
  /// Writes the IDs of an input's texts, if it has any, to `ids`; returns the place after them.
  std::int64_t* Texts(std::size_t input, const RawSparse& raw, std::int64_t* ids,
                      SparseView* view) const;
  void Ids(std::size_t input, const SparseView& view) const;
  void Weights(std::size_t input, const SparseView& view) const;

 private:
  std::string At(std::size_t input, const char* part) const;
  [[noreturn]] void RefuseId(std::size_t input, const SparseView& view) const;

  const Signature& signature_;
  const std::vector<IdBound>& id_bounds_;
  const RequestLimits& limits_;
  bool finite_;
  const char* field_ = "";
  std::int64_t num_rows_ = 0;
  std::int64_t num_ids_ = 0;
  std::int64_t num_texts_ = 0;
  struct WrongSum {
    std::size_t input;
    std::int64_t num_ids, sum;
  };
  std::optional<WrongSum> wrong_sum_;
};

}  // namespace recsys

#endif  // RECSYS_REQUEST_INPUT_CHECKS_H_
