#ifndef RECSYS_MODEL_ANSWERS_H_
#define RECSYS_MODEL_ANSWERS_H_

// Answers that the export has verified, by which operators are checked that it did not verify
// (recsys/artifact/answers.py).

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "check/json/json.h"
#include "model/graphs.h"
#include "recsys/signature.h"

namespace recsys {

/// Rows, and the float32 outputs that were verified for them.
class Answers {
 public:
  /// Reads untrusted data, the manifest's `answers`. Throws Error (kManifest).
  Answers(const Json& data, const Signature& signature);

  /// Returns how far the forms of a model are away from these answers; empty if they are near
  /// enough.
  std::string Difference(const LoadedGraphs& graphs) const;

 private:
  std::vector<c10::IValue> Inputs(bool is_ranking) const;

  const Signature& signature_;
  std::int64_t num_rows_;
  std::vector<at::Tensor> dense_;
  at::Tensor lengths_, values_, weights_;
  std::vector<std::pair<std::string, at::Tensor>> outputs_;
  double tolerance_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_ANSWERS_H_
