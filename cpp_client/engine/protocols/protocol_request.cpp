#include "engine/protocols/protocol_request.h"

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/stripes.h"
#include "engine/core/request.h"
#include "engine/protocols/request_stream.h"
#include "request/texts.h"

namespace recsys {
namespace {

/// Recycles the memory of requests' input lists: a thread that releases a request gives them back
/// to the stripe of the thread that has read it. Thread-safe; locks are held for nanoseconds, and
/// the amount kept is bounded.
class RequestMemory {
 public:
  /// The process's instance. Never destroyed: requests may end at any time.
  static RequestMemory& Shared();

  /// Gives a new request empty lists with capacity. Returns the stripe, for Give.
  std::size_t Take(Request* request);
  /// Takes the lists of a request that is no longer read.
  void Give(Request* request, std::size_t stripe);

 private:
  /// Of a stripe.
  static constexpr std::size_t kMaxKept = 256;
  /// Maximum inputs per request; longer lists are abuse, or a rare model.
  static constexpr std::size_t kMaxInputs = 2048;

  struct Lists {
    RawRequest raw;
    CheckedRequest checked;
  };

  struct Kept {
    std::mutex mutex;
    std::vector<Lists> lists;
  };

  Striped<Kept> kept_;
};

RequestMemory& RequestMemory::Shared() {
  static RequestMemory& shared = *new RequestMemory;
  return shared;
}

std::size_t RequestMemory::Take(Request* request) {
  const std::size_t stripe = ThisStripe();
  Kept& kept = kept_[stripe];
  const std::lock_guard lock(kept.mutex);
  if (kept.lists.empty()) return stripe;
  std::swap(request->raw, kept.lists.back().raw);
  std::swap(request->checked, kept.lists.back().checked);
  kept.lists.pop_back();
  return stripe;
}

void RequestMemory::Give(Request* request, std::size_t stripe) {
  RawRequest& raw = request->raw;
  CheckedRequest& checked = request->checked;
  const std::size_t num_inputs = raw.dense.capacity() + raw.sparse.capacity() +
                                 raw.context_dense.capacity() + raw.context_sparse.capacity();
  if (num_inputs == 0 || num_inputs > kMaxInputs) return;
  raw.Clear();
  checked.num_rows = checked.num_ids = checked.spread_bytes = 0;
  checked.dense.clear();
  checked.sparse.clear();
  checked.context.clear();
  checked.ids_of_texts.clear();
  checked.has_context = false;
  Kept& kept = kept_[stripe];
  const std::lock_guard lock(kept.mutex);
  if (kept.lists.size() < kMaxKept) kept.lists.push_back({std::move(raw), std::move(checked)});
}

}  // namespace

ProtocolRequest::ProtocolRequest(Gateway& gateway)
    : gateway_(gateway), memory_stripe_(RequestMemory::Shared().Take(this)) {}

ProtocolRequest::~ProtocolRequest() { RequestMemory::Shared().Give(this, memory_stripe_); }

void ProtocolRequest::LoadFrom(const Call& call, Bytes message) {
  client = call.connection_number();
  is_light = call.is_light();
  if (gateway_.reads_trace()) trace_parent = call.Metadata("traceparent");
  deadline_s = call.deadline_s();
  payload = std::move(message);
  num_bytes = static_cast<std::int64_t>(payload.view.size());
  Load(call);
  const std::string header = gateway_.KeyHeader(model);
  if (header.empty()) return;
  const std::string_view value = call.Metadata(header);
  if (!value.empty()) key = HashOfText(value);
}

void ProtocolRequest::Done(const Status& status, Message answer) {
  // The call holds the request as its handler: break the cycle.
  const std::shared_ptr<UnaryCall> call = std::move(call_);
  const std::shared_ptr<RequestStream> stream = std::move(stream_);
  if (stream) {
    stream->Answered(*this, OnStream(status, std::move(answer)));
  } else if (status.ok()) {
    call->Answer(std::move(answer));
  } else {
    call->Fail(status);
  }
}

std::shared_ptr<UnaryHandler> AnswerUnary(Gateway& gateway,
                                          const std::shared_ptr<ProtocolRequest>& request,
                                          std::shared_ptr<UnaryCall> call, Bytes message) {
  try {
    request->LoadFrom(*call, std::move(message));
  } catch (...) {
    const Status status = StatusOfCurrentException();
    gateway.Refused(status, request->protocol);
    call->Fail(status);
    return nullptr;
  }
  request->AnswerTo(std::move(call));
  gateway.Predict(request);
  return request;
}

Error ProtocolRequest::NoMessage(std::string_view kind) const {
  return Error(ErrorKind::kRequest, "message: got " + std::to_string(num_bytes) +
                                        " bytes that are not a " + std::string(kind));
}

}  // namespace recsys
