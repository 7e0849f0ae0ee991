#include "engine/core/executor/batch_runner.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "engine/core/shadow.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// Made before they are needed, when there may be no memory; never destroyed, as threads may still
// answer while the process exits.
const Status& kExpired = *new Status{
    StatusCode::kDeadlineExceeded, "the deadline passed while the request waited for its batch", 0};
const Status& kFailed =
    *new Status{StatusCode::kInternal, "the model failed on this request; the log says why", 0};
constexpr int kMaxIdsInLog = 16;

std::string TextOf(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

std::int64_t SumOfIds(Span<const std::shared_ptr<Request>> part) {
  std::int64_t sum = 0;
  for (const auto& request : part) sum += request->checked.num_ids;
  return sum;
}

void LogFailures(const Servable& servable, Span<const std::shared_ptr<Request>> failed,
                 const std::exception_ptr& thrown) {
  std::string ids;
  std::int64_t num_rows = 0;
  for (std::size_t i = 0; i < failed.size(); ++i) {
    num_rows += failed[i]->checked.num_rows;
    if (i >= kMaxIdsInLog || failed[i]->request_id.empty()) continue;
    ids += (ids.empty() ? "" : ", ") + Repr(failed[i]->request_id);
  }
  LogRecord record;
  record.level = LogLevel::kError;
  record.message = "a batch failed: model " + servable.name() + ", version " + servable.version() +
                   ", " + std::to_string(failed.size()) + " requests, " + std::to_string(num_rows) +
                   " rows, " + std::to_string(SumOfIds(failed)) +
                   " IDs; request IDs: " + (ids.empty() ? "none given" : ids);
  record.exception = TextOf(thrown);
  Log(std::move(record));
}

/// Calls a function whose failure must not stop the caller.
template <typename Function>
void Try(Function function) noexcept {
  try {
    function();
  } catch (...) {
    // There is no memory even for a message.
  }
}

/// Moves the requests that have ended to the end, and returns the others. Allocates nothing that
/// it cannot go without.
Span<std::shared_ptr<Request>> WithoutEnded(Span<std::shared_ptr<Request>> part) {
  const auto waits = [](const auto& request) {
    return !request->is_ended.load(std::memory_order_relaxed);
  };
  auto* const end = std::stable_partition(part.begin(), part.end(), waits);
  return {part.data(), static_cast<std::size_t>(end - part.begin())};
}

/// Whether an error has nothing to do with the requests: the rows on the disk were changed.
bool IsOfAll(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kChecksum;
  } catch (...) {
    return false;
  }
}

template <typename T>
std::string_view BytesOf(Span<const T> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

/// Returns the numbers of an output, those of the whole batch.
std::string_view BytesOf(const Outputs& outputs, std::size_t i, OutputType type) {
  if (type == OutputType::kFloat32) return BytesOf(outputs.values[i]);
  return i < outputs.integers.size() ? BytesOf(outputs.integers[i]) : std::string_view();
}

}  // namespace

void AnswerExpired(Request& request, const Servable::Deliver& deliver) {
  if (request.is_ended.exchange(true)) return;
  deliver(request, kExpired, {});
}

BatchRunner::BatchRunner(Servable& servable, const Servable::Deliver& deliver, const Clock& clock)
    : servable_(servable), deliver_(deliver), clock_(clock), writer_(servable.signature()) {
  for (const Output& output : servable.signature().outputs) {
    output_elements_.push_back(output.num_elements(1));
  }
  rows_.values.resize(output_elements_.size());
}

void BatchRunner::WarmUp(const WarmUpBatch& batch) {
  checked_.clear();
  for (const OwnedRequest& request : batch) checked_.push_back(&request.checked);
  BatchTimes times;
  Compute(&times);
}

void BatchRunner::Run(std::vector<std::shared_ptr<Request>>* requests, CutRequest* cut) noexcept {
  cut_ = cut;
  const auto is_by_row = [](const auto& request) { return !request->checked.has_context; };
  auto ranking = requests->begin();
  if (std::is_partitioned(requests->begin(), requests->end(), is_by_row)) {
    ranking = std::partition_point(requests->begin(), requests->end(), is_by_row);
  } else {
    ranking = std::stable_partition(requests->begin(), requests->end(), is_by_row);
  }
  const auto num_by_row = static_cast<std::size_t>(ranking - requests->begin());
  for (const Part part : {Part(requests->data(), num_by_row),
                          Part(requests->data() + num_by_row, requests->size() - num_by_row)}) {
    if (part.empty()) continue;
    ObserveBatch(part);
    try {
      RunPart(part);
      AnswerFailures();
    } catch (...) {
      GiveUp(part, std::current_exception());
    }
  }
}

void BatchRunner::RunPart(Part part) {
  BatchTimes times;
  times.taken_s = clock_();
  times.num_requests = static_cast<std::int64_t>(part.size());
  std::exception_ptr thrown;
  try {
    checked_.clear();
    queued_s_.clear();
    for (const auto& request : part) {
      checked_.push_back(&request->checked);
      queued_s_.push_back(times.taken_s - request->enqueued_s);
      times.num_rows += request->checked.num_rows;
    }
    Encode(part, Compute(&times));
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown != nullptr) {
    if (part.size() > 1 && !IsOfAll(thrown)) return Halve(part);
    return Fail(part, times, thrown);
  }
  times.responded_s = clock_();
  servable_.metrics().ObserveStages(queued_s_, times.collated_s - times.taken_s,
                                    times.executed_s - times.collated_s,
                                    times.responded_s - times.executed_s);
  for (std::size_t i = 0; i < part.size(); ++i) {
    End(*part[i], times, answers_[i].status, std::move(answers_[i].message));
  }
  answers_.clear();
}

void BatchRunner::Help(CutRequest* cut, CutRequest::Part* part) noexcept {
  for (; part != nullptr; part = cut->Claim()) {
    ComputePart(cut->shared(), part);
    cut->Done(part);
  }
}

void BatchRunner::ComputePart(SharedContext* shared, CutRequest::Part* part) noexcept {
  const double began_s = clock_();
  try {
    const CheckedRequest* const checked = &part->checked;
    Batch batch = writer_.Write({&checked, 1});
    batch.shared = shared;
    part->outputs = servable_.model().Predict(batch);
    CheckOutputs(part->outputs, batch.num_rows);
  } catch (...) {
    part->failure = std::current_exception();
  }
  part->seconds = clock_() - began_s;
}

Outputs BatchRunner::ComputeCut(BatchTimes* times) {
  times->collated_s = clock_();
  Help(cut_, cut_->Claim());
  cut_->WaitUntilDone();
  Outputs outputs = cut_->Joined();
  times->executed_s = clock_();
  return outputs;
}

Outputs BatchRunner::Compute(BatchTimes* times) {
  if (cut_ != nullptr) return ComputeCut(times);
  const Batch& batch = writer_.Write(checked_);
  times->collated_s = clock_();
  Outputs outputs = servable_.model().Predict(batch);
  CheckOutputs(outputs, batch.num_rows);
  times->executed_s = clock_();
  return outputs;
}

void BatchRunner::CheckOutputs(const Outputs& outputs, std::int64_t num_rows) const {
  if (outputs.values.size() != output_elements_.size()) {
    throw Error(ErrorKind::kExecution, "outputs: got " + std::to_string(outputs.values.size()) +
                                           ", expected " + std::to_string(output_elements_.size()));
  }
  for (std::size_t i = 0; i < output_elements_.size(); ++i) {
    const Output& output = servable_.signature().outputs[i];
    const auto expected = static_cast<std::size_t>(output.num_elements(num_rows));
    const std::size_t got = BytesOf(outputs, i, output.type).size() / output.element_bytes();
    if (got == expected) continue;
    throw Error(ErrorKind::kExecution, "output " + Repr(output.name) + ": got " +
                                           std::to_string(got) + " numbers, expected " +
                                           std::to_string(expected));
  }
}

void BatchRunner::Encode(Part part, const Outputs& outputs) {
  answers_.clear();
  answers_.resize(part.size());
  rows_.owner = outputs.owner;
  std::int64_t start = 0;
  for (std::size_t number = 0; number < part.size(); ++number) {
    Request& request = *part[number];
    rows_.num_rows = request.checked.num_rows;
    for (std::size_t i = 0; i < output_elements_.size(); ++i) {
      const Output& output = servable_.signature().outputs[i];
      const std::size_t row_bytes =
          static_cast<std::size_t>(output_elements_[i]) * output.element_bytes();
      rows_.values[i] = BytesOf(outputs, i, output.type);
      // A batch that is one request is its request's, of whatever shapes.
      if (servable_.signature().by_request) continue;
      rows_.values[i] =
          rows_.values[i].substr(static_cast<std::size_t>(start) * row_bytes,
                                 static_cast<std::size_t>(rows_.num_rows) * row_bytes);
    }
    start += rows_.num_rows;
    EncodeOne(request, &answers_[number]);
    if (request.shadow != nullptr) ShowShadow(request);
  }
  rows_.owner.reset();
}

void BatchRunner::EncodeOne(Request& request, Answer* answer) {
  try {
    // A cancelled request needs no answer; its shadow still compares the rows.
    if (!request.is_ended.load(std::memory_order_relaxed)) {
      answer->message = request.Encode(servable_, rows_);
      if (request.keeps_answer) {
        request.outputs.clear();
        for (const std::string_view values : rows_.values) request.outputs.append(values);
      }
    }
  } catch (...) {
    answer->status = LoggedStatusOfCurrentException();
    answer->message = {};
  }
}

void BatchRunner::ShowShadow(Request& request) const {
  try {
    request.shadow->PrimaryAnswered(rows_);
  } catch (...) {
    request.shadow->Failed();
    Try([thrown = std::current_exception()] {
      Log(LogLevel::kError, "an answer could not be kept for the shadow: " + TextOf(thrown));
    });
  }
}

void BatchRunner::ObserveBatch(Part part) const {
  std::int64_t num_rows = 0;
  for (const auto& request : part) num_rows += request->checked.num_rows;
  servable_.metrics().ObserveBatch(static_cast<std::int64_t>(part.size()), num_rows,
                                   SumOfIds({part.data(), part.size()}));
}

void BatchRunner::Halve(Part part) {
  const std::size_t half = part.size() / 2;
  for (const Part of : {Part(part.data(), half), Part(part.data() + half, part.size() - half)}) {
    // What has waited for the runs before this one may have no use for an answer any more.
    const double now_s = clock_();
    for (const auto& request : of) {
      if (request->deadline_s <= now_s) AnswerExpired(*request, deliver_);
    }
    const Part left = WithoutEnded(of);
    if (!left.empty()) RunPart(left);
  }
}

void BatchRunner::Fail(Part part, const BatchTimes& times, const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kRequest || error.kind() == ErrorKind::kNotReady) {
      const Status status = StatusOf(error);
      for (const auto& request : part) End(*request, times, status, {});
      return;
    }
  } catch (...) {
    // Its text is for the log.
  }
  if (failed_.empty()) failure_ = thrown;
  for (const double seconds : queued_s_) servable_.metrics().Observe(Stage::kQueue, seconds);
  // First: where memory ends, each that failed has times.
  failed_times_.resize(failed_.size() + part.size(), times);
  failed_.insert(failed_.end(), part.begin(), part.end());
}

void BatchRunner::AnswerFailures() {
  if (failed_.empty()) return failed_times_.clear();
  Try([this] { LogFailures(servable_, failed_, failure_); });
  for (std::size_t i = 0; i < failed_.size(); ++i) {
    End(*failed_[i], failed_times_[i], kFailed, {});
  }
  failed_.clear();
  failed_times_.clear();
  failure_ = nullptr;
}

void BatchRunner::GiveUp(Part part, const std::exception_ptr& thrown) {
  AnswerFailures();
  const Part left = WithoutEnded(part);
  if (left.empty()) return;
  Try([&] { LogFailures(servable_, {left.data(), left.size()}, thrown); });
  for (const auto& request : left) End(*request, {}, kFailed, {});
}

void BatchRunner::End(Request& request, const BatchTimes& times, const Status& status,
                      Message message) {
  if (request.is_ended.exchange(true)) return;
  request.times = times;
  deliver_(request, status, std::move(message));
}

}  // namespace recsys
