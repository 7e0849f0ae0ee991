#ifndef RECSYS_BATCH_WRITER_H_
#define RECSYS_BATCH_WRITER_H_

#include <cstdint>
#include <vector>

#include "recsys/model.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// Assembles checked requests into a batch: copies each request's views once, directly to their
/// key-major position. Reuses its memory for the next batch. Not thread-safe: use one per executor.
class BatchWriter {
 public:
  explicit BatchWriter(const Signature& signature);

  /// Writes at least one request, in the given order. All must be checked against the signature,
  /// and either all or none have a context. Throws Error (kRequest) if there are several and the
  /// signature's batch is one request. The batch's spans are valid until the next Write.
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
