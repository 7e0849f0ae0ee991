#ifndef RECSYS_FUZZ_SERVED_H_
#define RECSYS_FUZZ_SERVED_H_

// Shared by the fuzzers of requests: a model that accepts them, and the steps from a request to its
// batch.

#include "recsys/batch_writer.h"
#include "recsys/error.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

inline Signature FuzzedSignature() {
  Signature signature;
  signature.dense = {{"context", 3}, {"price", 1}};
  signature.sparse = {{"user", {{"users", 50, IdPolicy::kReject}}, "sum", false},
                      {"genres", {{"genres", 7, IdPolicy::kZero}}, "mean", false},
                      {"item", {{"items", 11, IdPolicy::kHash}}, "sum", false, "xxh64"},
                      {"tags", {{"tags", 9, IdPolicy::kReject}}, "sum", true}};
  signature.outputs = {{"score", {}}, {"vectors", {2, 3}}};
  signature.context = {"context", "user"};
  return signature;
}

/// Checks requests, and writes those that pass into a batch of their own.
class Served {
 public:
  const Signature& signature() const { return signature_; }
  const RequestLimits& limits() const { return checker_.limits(); }

  void Take(const RawRequest& raw) {
    checker_.Check(raw, &checked_);
    const CheckedRequest* const only = &checked_;
    const Batch& batch = writer_.Write({&only, 1});
    if (batch.num_rows != checked_.num_rows) __builtin_trap();
  }

 private:
  const Signature signature_ = FuzzedSignature();
  const RequestChecker checker_{signature_, {64, 4096, 1 << 20}};
  CheckedRequest checked_;
  BatchWriter writer_{signature_};
};

}  // namespace recsys

#endif  // RECSYS_FUZZ_SERVED_H_
