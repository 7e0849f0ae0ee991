#include "engine/core/queue/batch_queue.h"

#include <cmath>
#include <string>

#include "recsys/error.h"

namespace recsys {
namespace {

// A light client has at most this share of what the others have on average, and is remembered for
// so long.
constexpr std::int64_t kLightShare = 8;
constexpr double kLightS = 1.0;

/// Returns the room a request takes in the queue: rows, IDs, bytes.
Amounts AmountsOf(const Request& request) {
  const CheckedRequest& checked = request.checked;
  return {CountedRows(checked), checked.num_ids, std::max(request.num_bytes, checked.spread_bytes)};
}

std::string TextOf(const BatchQueue::Full& full) {
  static constexpr PerAmount<const char*> kNames = {"rows", "IDs", "bytes"};
  return "queue: " + std::to_string(full.waiting) + " " + kNames[full.what] + " wait, at most " +
         std::to_string(full.at_most) + " may";
}

}  // namespace

BatchQueue::BatchQueue(const BatchLimits& limits, Clock clock, bool by_request)
    : limits_(limits),
      at_most_{limits.max_queue_rows, limits.max_queue_ids, limits.max_queue_bytes},
      by_request_(by_request),
      window_s_(static_cast<double>(limits.priority_window_us) * 1e-6),
      delay_s_(by_request ? 0 : static_cast<double>(limits.max_delay_us) * 1e-6),
      clock_(std::move(clock)),
      order_(window_s_) {}

BatchQueue::~BatchQueue() {
  // Requests own themselves while they wait.
  while (Request* const request = order_.Next()) Leave(*request, 0);
}

void BatchQueue::CheckSize(const Request& request) const {
  const Amounts amounts = AmountsOf(request);
  const auto check = [](const char* field, std::int64_t got, const char* unit, std::int64_t most) {
    if (got <= most) return;
    throw Error(ErrorKind::kRequestTooLarge,
                std::string(field) + ": got " + std::to_string(got) + unit + ", expected at most " +
                    std::to_string(most) + " in one request; split it");
  };
  check("num_rows", request.checked.num_rows, "", limits_.max_request_rows);
  check("sparse", amounts[Amount::kIds], " IDs", limits_.max_request_ids);
  check("message", amounts[Amount::kBytes], " bytes", limits_.max_queue_bytes);
}

void BatchQueue::Prepare(Request& request) const {
  request.room = AmountsOf(request);
  request.level = static_cast<int>(request.priority) + (IsHuge(request) ? 1 : 0);
}

std::optional<BatchQueue::Full> BatchQueue::PutAt(double now_s,
                                                  const std::shared_ptr<Request>& request,
                                                  Requests* expired, PushedOut* pushed_out) {
  if (LackFor(request->room)) {
    Expire(now_s, expired);
    const std::optional<Lack> lack = LackFor(request->room);
    if (lack && (pushed_out == nullptr || !PushOut(*request, now_s, pushed_out))) {
      return FullFor(*lack, now_s);
    }
  }
  if (std::isfinite(request->deadline_s)) {
    // A failure refuses the request.
    deadlines_.Add(*request, request->deadline_s + clock_.behind_s());
  }
  request->self = request;
  request->enqueued_s = now_s;
  NoteLightClient(*request, now_s);
  Join(*request, now_s);
  return std::nullopt;
}

QueueFullError BatchQueue::ErrorOf(const Full& full) {
  return QueueFullError(TextOf(full) + "; try again later", full.retry_after_ms);
}

QueueFullError BatchQueue::ErrorOf(const PushedOut& pushed_out) {
  return QueueFullError(
      TextOf(pushed_out.why) + ", and most of them are this connection's; try again later",
      pushed_out.why.retry_after_ms);
}

std::shared_ptr<Request> BatchQueue::Cancel(Request& request) {
  return IsWaiting(request) ? Leave(request, clock_.last_s()) : nullptr;
}

std::optional<double> BatchQueue::ReadyAt(double given_s) {
  if (is_idle()) return std::nullopt;
  clock_.At(given_s);
  const bool is_full = num_rows() >= limits_.max_batch_rows || num_ids() >= limits_.max_batch_ids;
  if (is_full || !has_delay()) return given_s;
  return std::min(oldest_->enqueued_s + delay_s_, deadlines_.first_s() - delay_s_) -
         clock_.behind_s();
}

BatchSize BatchQueue::TakeAt(double now_s, Requests* batch, Requests* expired,
                             const TakeLimits& limits, Request** all) {
  Expire(now_s, expired);
  const std::int64_t most_rows = limits.never_exceeds
                                     ? std::min(limits.enough_rows, limits_.max_batch_rows)
                                     : limits_.max_batch_rows;
  const BatchSize waiting = {num_rows(), num_ids()};
  if (num_requests_ > 1 && !by_request_ && !limits.light_only &&
      waiting.num_rows <= std::min(limits.enough_rows, most_rows) &&
      waiting.num_ids <= limits_.max_batch_ids) {
    batch->reserve(batch->size() + static_cast<std::size_t>(num_requests_));
    *all = LeaveAll();
    rate_.Taken(now_s, true);
    return waiting;
  }
  BatchSize taken;
  bool is_first = true;
  while (Request* const next = order_.Next()) {
    if (taken.num_rows >= limits.enough_rows || (limits.light_only && !next->is_light)) break;
    const BatchSize with{taken.num_rows + next->room[Amount::kRows],
                         taken.num_ids + next->room[Amount::kIds]};
    const bool fits = with.num_rows <= most_rows && with.num_ids <= limits_.max_batch_ids;
    if (!is_first && (by_request_ || !fits)) break;
    batch->push_back(Leave(*next, now_s, true));
    taken = with;
    is_first = false;
  }
  rate_.Taken(now_s, num_requests_ == 0);
  return taken;
}

std::optional<BatchQueue::Lack> BatchQueue::LackFor(const Amounts& amounts) const {
  for (const Amount what : kAllAmounts) {
    if (Lacking(what, amounts) > 0) return Lack{what, Lacking(what, amounts)};
  }
  return std::nullopt;
}

BatchQueue::Full BatchQueue::FullFor(const Lack& lack, double now_s) const {
  return {lack.what, waiting_[lack.what], at_most_[lack.what],
          rate_.RetryAfterMs(lack.what, lack.amount, now_s)};
}

bool BatchQueue::IsHuge(const Request& request) const {
  return request.checked.num_rows > limits_.max_batch_rows ||
         request.checked.num_ids > limits_.max_batch_ids;
}

bool BatchQueue::PushOut(const Request& request, double now_s, PushedOut* pushed_out) {
  const Amounts& amounts = request.room;
  std::optional<Lack> lack = LackFor(amounts);
  const QueueClient* const heaviest = order_.Heaviest(lack->what);
  if (heaviest == nullptr || heaviest->number == request.client) return false;
  // Without what is lacking, it must still have as much as this client will.
  const Amounts own = order_.AmountsOf(request.client);
  for (const Amount what : kAllAmounts) {
    const std::int64_t lacking = Lacking(what, amounts);
    if (lacking > 0 && heaviest->amounts[what] - lacking < own[what] + amounts[what]) return false;
  }
  pushed_out->why = FullFor(*lack, now_s);
  for (; lack; lack = LackFor(amounts)) {
    pushed_out->requests.push_back(Leave(*heaviest->waiting.Last(), now_s));
  }
  return true;
}

void BatchQueue::NoteLightClient(const Request& request, double now_s) {
  if (num_rows() < limits_.max_batch_rows) return;
  const std::int64_t own =
      order_.AmountsOf(request.client)[Amount::kRows] + request.room[Amount::kRows];
  const auto num_others = static_cast<double>(order_.num_waiting_clients());
  if (static_cast<double>(kLightShare * own) * num_others <= static_cast<double>(num_rows())) {
    light_until_s_ = now_s + kLightS;
  }
}

void BatchQueue::Join(Request& request, double now_s) {
  request.waits_in = round_;
  request.newer = nullptr;
  request.older = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer) = &request;
  newest_ = &request;
  order_.Join(request, now_s);
  waiting_ += request.room;
  if (request.is_light) {
    light_.num_rows += request.room[Amount::kRows];
    light_.num_ids += request.room[Amount::kIds];
  }
  ++num_requests_;
}

std::shared_ptr<Request> BatchQueue::Leave(Request& request, double now_s, bool is_served) {
  (request.older == nullptr ? oldest_ : request.older->newer) = request.newer;
  (request.newer == nullptr ? newest_ : request.newer->older) = request.older;
  request.older = request.newer = nullptr;
  order_.Leave(request, now_s, is_served);
  request.waits_in = 0;
  --num_requests_;
  deadlines_.Remove(request);
  waiting_ -= request.room;
  if (request.is_light) {
    light_.num_rows -= request.room[Amount::kRows];
    light_.num_ids -= request.room[Amount::kIds];
  }
  rate_.Left(request.room);
  return std::move(request.self);
}

Request* BatchQueue::LeaveAll() {
  ++round_;
  Request* const oldest = std::exchange(oldest_, nullptr);
  newest_ = nullptr;
  num_requests_ = 0;
  order_.LeaveAll();
  deadlines_.RemoveAll();
  rate_.Left(waiting_);
  waiting_ = {};
  light_ = {};
  return oldest;
}

void BatchQueue::AppendAll(Request* all, Requests* batch) {
  for (Request* request = all; request != nullptr;) {
    Request& one = *request;
    request = one.newer;
    one.deadline_line = 0;
    one.queue_client = nullptr;
    one.previous = one.next = one.older = one.newer = one.sooner = one.later = nullptr;
    batch->push_back(std::move(one.self));
  }
}

void BatchQueue::Expire(double now_s, Requests* expired) {
  while (deadlines_.first_s() <= now_s) {
    expired->push_back(Leave(*deadlines_.First(), now_s));
  }
}

}  // namespace recsys
