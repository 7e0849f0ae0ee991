#include "engine/core/gateway.h"

#include <cstddef>
#include <utility>

#include "base/random.h"
#include "base/text.h"
#include "engine/core/executor/executor.h"
#include "engine/core/executor/pending_decisions.h"
#include "engine/core/servable.h"
#include "engine/core/shadow.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// A client whose deadline has passed may disconnect slightly before this clock reaches it.
constexpr double kClocksApartS = 0.02;
// Longer request IDs would only fill the log.
constexpr std::size_t kMaxRequestIdBytes = 128;
// Versions may be swapped while a request is routed; this many times for one request is a fault.
constexpr int kMaxRoutes = 8;

[[noreturn]] void ThrowDraining() {
  throw Error(ErrorKind::kDraining, "the server is stopping; send the request to another one");
}

void Read(Request& request, std::shared_ptr<Servable> servable) {
  request.servable = std::move(servable);
  request.Read(*request.servable);
  request.servable->checker().Check(request.raw, &request.checked);
}

/// Represents a request that could not be read.
class UnreadRequest : public Request {
 public:
  void Read(const Servable&) override {}
  Message Encode(const Servable&, const Rows&) override { return {}; }
  void Done(const Status&, Message) override {}
};

}  // namespace

void CheckRequestId(std::string_view text, std::string_view field) {
  // JSON escapes can express lone surrogates, which UTF-8 cannot.
  if (!IsUtf8(text)) {
    throw Error(ErrorKind::kRequest,
                std::string(field) + ": got half a surrogate pair, expected text in UTF-8");
  }
  if (text.size() > kMaxRequestIdBytes) {
    throw Error(ErrorKind::kRequest, std::string(field) + ": got " + std::to_string(text.size()) +
                                         " bytes, expected at most " +
                                         std::to_string(kMaxRequestIdBytes));
  }
}

Gateway::Gateway(const Router& router, Observer* observer, Clock clock)
    : router_(router), observer_(observer), clock_(std::move(clock)) {}

void Gateway::Predict(const std::shared_ptr<Request>& request) {
  request->active_stripe = active_.Begin();
  request->counted_by = this;
  request->started_s = clock_();
  Status status;
  try {
    if (is_draining_.load()) ThrowDraining();
    // In a polling thread, a request joins its queue with all that are read at once.
    PendingDecisions* const pending = PendingDecisions::OfThisThread();
    status = pending == nullptr ? AcceptNow(request) : Prepare(*request);
    if (pending != nullptr && status.ok()) pending->Join(request);
  } catch (...) {
    status = LoggedStatusOfCurrentException();
  }
  if (!status.ok() && !request->is_ended.exchange(true)) End(*request, status, {});
}

Status Gateway::AcceptNow(const std::shared_ptr<Request>& request) {
  for (int tries = 0; tries < kMaxRoutes; ++tries) {
    Status status = Prepare(*request);
    if (!status.ok()) return status;
    try {
      request->servable->executor().Submit(request);
    } catch (const Error& error) {
      if (IsOfClosing(error)) continue;
      return LoggedStatusOfCurrentException();
    }
    Joined(*request);
    return {};
  }
  ThrowDraining();
}

void Gateway::Joined(Request& request) {
  // An executor may have answered it.
  if (request.shadow != nullptr) request.shadow->by().Submit(request.shadow);
  if (observer_ != nullptr) observer_->Accepted(request);
  if ((request.progress.fetch_or(Request::kAccepted) & Request::kCancelled) != 0) GiveUp(request);
}

void Gateway::NotJoined(const Refusal& refusal) {
  const std::shared_ptr<Request>& request = refusal.request;
  Status status;
  try {
    try {
      refusal.Throw();
    } catch (const Error& error) {
      if (!IsOfClosing(error)) throw;
    }
    status = AcceptNow(request);
  } catch (...) {
    status = LoggedStatusOfCurrentException();
  }
  if (!status.ok() && !request->is_ended.exchange(true)) End(*request, status, {});
}

bool Gateway::IsOfClosing(const Error& error) const {
  return error.kind() == ErrorKind::kDraining && !is_draining_.load();
}

Route Gateway::Examine(Request& request) const {
  RouteQuery query{request.model, request.version, request.drew_version, RandomShare(),
                   request.key};
  Route route = router_.Find(query);
  Read(request, route.primary);
  if (route.key_feature.empty()) return route;
  query.key = request.key = request.servable->checker().FirstId(request.checked, route.key_feature);
  route = router_.Find(query);
  if (route.primary != request.servable) Read(request, route.primary);
  return route;
}

Status Gateway::Prepare(Request& request) const {
  // Caught here, near where it is thrown: each frame that is unwound costs a tenth of a call.
  try {
    const Route route = Examine(request);
    Servable& servable = *request.servable;
    servable.executor().CheckSize(request);
    request.keeps_answer = observer_ != nullptr && observer_->KeepsAnswer(request);
    request.shadow = route.shadow == nullptr ? nullptr : route.shadow->Begin(request, servable);
    return {};
  } catch (...) {
    return LoggedStatusOfCurrentException();
  }
}

void Gateway::Cancel(const std::shared_ptr<Request>& request) {
  // If it has not joined a queue yet, Predict handles the cancellation.
  if ((request->progress.fetch_or(Request::kCancelled) & Request::kAccepted) != 0) {
    GiveUp(*request);
  }
}

void Gateway::GiveUp(Request& request) {
  if (request.is_ended.exchange(true)) return;
  request.servable->executor().Cancel(request);
  if (request.deadline_s <= clock_() + kClocksApartS) {
    End(request, {StatusCode::kDeadlineExceeded, "the deadline passed", 0}, {});
  } else {
    End(request, {StatusCode::kCancelled, "the client gave up", 0}, {});
  }
}

void Gateway::End(Request& request, const Status& status, Message answer) {
  // Shadow requests have no client.
  if (request.counted_by == nullptr) {
    request.Done(status, std::move(answer));
    return;
  }
  if (request.servable == nullptr) {
    unrouted_.Count(OutcomeOf(status.code));
  } else if (status.ok()) {
    request.servable->metrics().Answered(clock_() - request.started_s);
  } else {
    request.servable->metrics().Count(OutcomeOf(status.code));
  }
  if (observer_ != nullptr) observer_->Ended(request, status);
  // Done may let go of the request.
  const std::size_t active_stripe = request.active_stripe;
  request.Done(status, std::move(answer));
  active_.End(active_stripe);
}

void Gateway::Refused(const Status& status, const char* protocol) {
  UnreadRequest request;
  request.protocol = protocol;
  request.started_s = clock_();
  unrouted_.Count(OutcomeOf(status.code));
  if (observer_ != nullptr) observer_->Ended(request, status);
}

void Gateway::Drain() { is_draining_.store(true); }

}  // namespace recsys
