#ifndef RECSYS_ENGINE_CORE_BATCH_RUNNER_H_
#define RECSYS_ENGINE_CORE_BATCH_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/core/request.h"
#include "engine/core/servable.h"
#include "engine/core/warm_up.h"
#include "recsys/batch_writer.h"
#include "recsys/span.h"

namespace recsys {

/// Answers a request whose deadline passed before it was computed, unless it is already answered.
void GiveExpired(Request& request, const Servable::Deliver& deliver);

/// Computes and answers the requests of a batch, in one executor's thread. Not thread-safe: each
/// thread has its own, whose memory is reused for the next batch.
class BatchRunner {
 public:
  /// `servable` and `deliver` must outlive it.
  BatchRunner(Servable& servable, const Servable::Deliver& deliver, const Clock& clock);

  /// Computes a batch and discards its outputs. Throws the model's exceptions.
  void WarmUp(const WarmUpBatch& batch);

  /// Answers all requests: those with a context in one batch, those without in another. If the
  /// model throws, only the requests of that batch are answered with the error; if one of them is
  /// to blame, only that one. Never throws.
  /// Reorders `requests`.
  void Run(std::vector<std::shared_ptr<Request>>* requests);

 private:
  using Part = Span<const std::shared_ptr<Request>>;
  struct Answer {
    Status status;
    Message message;
  };

  void RunPart(Part part);
  Outputs Compute(BatchTimes* times);
  void CheckOutputs(const Outputs& outputs, std::int64_t num_rows) const;
  void Encode(Part part, const Outputs& outputs);
  void EncodeOne(Request& request, Answer* answer);
  /// Passes the rows to the request's shadow; a failure does not affect the request itself.
  void ShowShadow(Request& request) const;
  /// Counts a batch once, before it runs.
  void ObserveBatch(Part part) const;
  /// Refuses the only request; runs several again in halves, until the one to blame is alone.
  void Refuse(Part part, const BatchTimes& times, const Status& refusal);
  void Fail(Part part, const BatchTimes& times);
  /// Ends a request unless it has already ended.
  void Give(Request& request, const BatchTimes& times, Answer answer);

  Servable& servable_;
  const Servable::Deliver& deliver_;
  const Clock& clock_;
  BatchWriter writer_;
  std::vector<std::int64_t> output_elements_;
  std::vector<const CheckedRequest*> checked_;
  std::vector<Answer> answers_;
  std::vector<double> queued_s_;
  Rows rows_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_BATCH_RUNNER_H_
