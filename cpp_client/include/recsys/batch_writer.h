#ifndef RECSYS_BATCH_WRITER_H_
#define RECSYS_BATCH_WRITER_H_

#include <cstdint>
#include <vector>

#include "recsys/model.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// Puts checked requests together: from each request's views straight to the batch's key-major
/// place, one copy each. The memory is used again by the next batch. Not thread-safe: one for each
/// executor.
class BatchWriter {
 public:
  explicit BatchWriter(const Signature& signature);

  /// At least one request, all checked against the signature, all with a context or all without; in
  /// their order. The batch's spans are valid until the next Write.
  const Batch& Write(Span<const CheckedRequest* const> requests);

 private:
  struct Memory {
    std::vector<std::vector<float>> dense;
    std::vector<std::int64_t> lengths, values, context_lengths, context_values, row_context;
    std::vector<float> weights, context_weights;
  };

  Signature signature_;
  Memory memory_;
  Batch batch_;
};

}  // namespace recsys

#endif  // RECSYS_BATCH_WRITER_H_
