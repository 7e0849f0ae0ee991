#ifndef RECSYS_MODEL_ANSWERS_H_
#define RECSYS_MODEL_ANSWERS_H_

// Answers that the export has verified, by which operators are checked that it did not verify
// (recsys/artifact/batches/answers.py).

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "format/json/json.h"
#include "recsys/model.h"
#include "recsys/signature.h"

namespace recsys {

class LoadedGraphs;

/// Rows, and the float32 outputs that were verified for them.
class Answers {
 public:
  /// Reads untrusted data, the manifest's `answers`, which holds some. Throws Error (kManifest).
  Answers(const Json& data, const Signature& signature);

  const VerifiedRows& rows() const { return rows_; }
  /// Returns the rows as the arguments of a form of the model.
  std::vector<c10::IValue> Inputs(bool is_ranking) const;

  /// Returns how far the forms of a model are away from these answers; empty if they are near
  /// enough.
  std::string Difference(const LoadedGraphs& graphs) const;

 private:
  const Signature& signature_;
  VerifiedRows rows_;
  std::vector<at::Tensor> dense_;
  at::Tensor lengths_, values_, weights_;
  std::vector<std::pair<std::string, at::Tensor>> outputs_;
  double tolerance_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_ANSWERS_H_
