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

/// Answers a request that was not computed because its deadline has passed, unless it is answered.
void GiveExpired(Request& request, const Servable::Deliver& deliver);

/// Takes a batch's requests to their answers, in one executor's thread. Not thread-safe: each
/// thread has its own and reuses its memory for the next batch.
class BatchRunner {
 public:
  /// `servable` and `deliver` must outlive it.
  BatchRunner(Servable& servable, const Servable::Deliver& deliver, const Clock& clock);

  /// Computes a batch and drops its outputs. Throws what the model throws.
  void WarmUp(const WarmUpBatch& batch);

  /// Answers all of them: those with a context in one batch, those without in another. What a model
  /// throws is their answer, and nobody else's. Never throws. Reorders `requests`.
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
  /// Hands the rows to the request's shadow; a failure is the shadow's alone.
  void ShowShadow(Request& request) const;
  void Fail(Part part, const BatchTimes& times);
  /// Ends a request unless somebody else has.
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
