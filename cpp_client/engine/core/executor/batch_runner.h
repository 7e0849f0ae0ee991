#ifndef RECSYS_ENGINE_CORE_EXECUTOR_BATCH_RUNNER_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_BATCH_RUNNER_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/core/cut_request.h"
#include "engine/core/executor/warm_up.h"
#include "engine/core/request.h"
#include "engine/core/servable.h"
#include "recsys/batch_writer.h"
#include "recsys/span.h"

namespace recsys {

/// Answers a request whose deadline passed before it was computed, unless it is already answered.
void AnswerExpired(Request& request, const Servable::Deliver& deliver);

/// Computes and answers the requests of a batch, in one executor's thread. Not thread-safe: each
/// thread has its own, whose memory is reused for the next batch.
class BatchRunner {
 public:
  /// `servable` and `deliver` must outlive it.
  BatchRunner(Servable& servable, const Servable::Deliver& deliver, const Clock& clock);

  /// Computes a batch and discards its outputs. Throws the model's exceptions.
  void WarmUp(const WarmUpBatch& batch);

  /// Answers all requests: those with a context in one batch, those without in another. If the
  /// model throws, the batch runs again in halves, until what it throws for is one request: that
  /// alone is answered with the error. So a batch of N requests takes at most 2 N - 1 runs, and
  /// each request is in at most 1 + log2(N) of them, rounded up; none runs again behind its
  /// deadline, and the log has one entry. If something else fails, such as an allocation, the
  /// requests without an answer get an error. Reorders `requests`.
  /// `cut`: the parts of the only request, or null; computes those that no other thread claims.
  void Run(std::vector<std::shared_ptr<Request>>* requests, CutRequest* cut = nullptr) noexcept;
  /// Computes parts of a request that another runner answers, from `part`, which is claimed, until
  /// none is left.
  void Help(CutRequest* cut, CutRequest::Part* part) noexcept;

 private:
  using Part = Span<std::shared_ptr<Request>>;
  struct Answer {
    Status status;
    Message message;
  };

  void RunPart(Part part);
  Outputs Compute(BatchTimes* times);
  Outputs ComputeCut(BatchTimes* times);
  void ComputePart(SharedContext* shared, CutRequest::Part* part) noexcept;
  void CheckOutputs(const Outputs& outputs, std::int64_t num_rows) const;
  void Encode(Part part, const Outputs& outputs);
  void EncodeOne(Request& request, Answer* answer);
  /// Passes the rows to the request's shadow; a failure does not affect the request itself.
  void ShowShadow(Request& request) const;
  /// Counts a batch once, before it runs.
  void ObserveBatch(Part part) const;
  /// Runs requests again in halves.
  void Halve(Part part);
  /// Answers requests with what the model has thrown, if it is told them; keeps others.
  void Fail(Part part, const BatchTimes& times, const std::exception_ptr& thrown);
  /// Logs what was kept of a batch, and answers it.
  void AnswerFailures();
  /// Answers all that have no answer yet, because `thrown` keeps the runner from going on.
  void GiveUp(Part part, const std::exception_ptr& thrown);
  /// Ends a request unless it has already ended.
  void End(Request& request, const BatchTimes& times, const Status& status, Message message);

  Servable& servable_;
  const Servable::Deliver& deliver_;
  const Clock& clock_;
  BatchWriter writer_;
  std::vector<std::int64_t> output_elements_;
  std::vector<const CheckedRequest*> checked_;
  /// The parts of the request that runs; null for most.
  CutRequest* cut_ = nullptr;
  std::vector<Answer> answers_;
  std::vector<double> queued_s_;
  /// For the log of the batch that runs: the requests on which the model failed, and why it failed
  /// on the first.
  std::vector<std::shared_ptr<Request>> failed_;
  std::vector<BatchTimes> failed_times_;
  std::exception_ptr failure_;
  Rows rows_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_BATCH_RUNNER_H_
