#include "engine/calls/health.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "wire/cursor.h"
#include "wire/writer.h"

namespace recsys {
namespace {

// HealthCheckResponse.ServingStatus, with the numbers of the wire.
constexpr std::uint64_t kServing = 1, kNotServing = 2, kServiceUnknown = 3;

// HealthCheckResponse: status 1.
Message AnswerOf(std::uint64_t status) {
  Writer writer;
  writer.VarintField(1, status);
  return writer.Finish();
}

// HealthCheckRequest: service 1. Returns none if the bytes are malformed.
std::optional<std::string> ServiceOf(const Bytes& data) {
  std::string service;
  Cursor cursor(data.view);
  while (cursor.Next()) {
    if (cursor.tag() == DelimitedTag(1)) {
      service = cursor.ReadText();
    } else {
      cursor.Skip();
    }
  }
  if (!cursor.ok()) return std::nullopt;
  return service;
}

// The answer of gRPC's own Python server.
Status WrongMessage() { return {StatusCode::kInternal, "Exception deserializing request!", 0}; }

}  // namespace

/// Statuses by service, and the calls that watch them. Watchers are never called with the lock
/// held.
struct Health::State {
  std::mutex mutex;
  std::map<std::string, std::uint64_t> statuses;
  std::map<std::string, std::set<Watcher*>> watchers;
  bool is_shut_down = false;

  std::optional<std::uint64_t> Find(const std::string& service) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = statuses.find(service);
    if (found == statuses.end()) return std::nullopt;
    return found->second;
  }
  void Set(const std::string& service, bool is_serving);
  void Shutdown();
  std::vector<std::shared_ptr<Watcher>> WatchersOf(const std::string& service);
};

/// One Watch call. Writes one answer at a time, with the current status: a client that does not
/// read uses no further memory.
class Health::Watcher final : public StreamHandler, public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(std::shared_ptr<State> state, std::shared_ptr<StreamCall> call)
      : state_(std::move(state)), call_(std::move(call)) {}

  void OnMessage(Bytes message) override {
    service_ = ServiceOf(message);
    if (!service_) return call_->Finish(WrongMessage());
    {
      const std::lock_guard<std::mutex> lock(state_->mutex);
      state_->watchers[*service_].insert(this);
    }
    Update();
  }
  void OnHalfClose() override {
    // Clients half-close with their only request; no further message is read.
    if (!service_) call_->Finish(WrongMessage());
  }
  ~Watcher() override { Leave(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  void OnCancelled() override { Leave(); }

  /// Writes the status if it differs from the last one written.
  void Update() {
    std::uint64_t status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_writing_) return;
      status = state_->Find(*service_).value_or(kServiceUnknown);
      if (status == last_) return;
      is_writing_ = true;
      last_ = status;
    }
    call_->Write(AnswerOf(status), [self = shared_from_this()](bool ok) { self->Written(ok); });
  }

 private:
  void Leave() {
    if (!service_) return;
    const std::lock_guard<std::mutex> lock(state_->mutex);
    const auto found = state_->watchers.find(*service_);
    if (found == state_->watchers.end()) return;
    found->second.erase(this);
    if (found->second.empty()) state_->watchers.erase(found);
  }

  void Written(bool ok) {
    if (!ok) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_writing_ = false;
    }
    Update();
  }

  const std::shared_ptr<State> state_;
  const std::shared_ptr<StreamCall> call_;
  std::optional<std::string> service_;
  std::mutex mutex_;
  std::optional<std::uint64_t> last_;
  bool is_writing_ = false;
};

std::vector<std::shared_ptr<Health::Watcher>> Health::State::WatchersOf(
    const std::string& service) {
  std::vector<std::shared_ptr<Watcher>> found;
  const auto those = watchers.find(service);
  if (those == watchers.end()) return found;
  for (Watcher* watcher : those->second) {
    // A watcher that is being destroyed removes itself.
    if (auto held = watcher->weak_from_this().lock()) found.push_back(std::move(held));
  }
  return found;
}

void Health::State::Set(const std::string& service, bool is_serving) {
  std::vector<std::shared_ptr<Watcher>> notified;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (is_shut_down) return;
    statuses[service] = is_serving ? kServing : kNotServing;
    notified = WatchersOf(service);
  }
  for (const auto& watcher : notified) watcher->Update();
}

void Health::State::Shutdown() {
  std::vector<std::shared_ptr<Watcher>> notified;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (std::exchange(is_shut_down, true)) return;
    for (auto& [service, status] : statuses) {
      status = kNotServing;
      for (auto& watcher : WatchersOf(service)) notified.push_back(std::move(watcher));
    }
  }
  for (const auto& watcher : notified) watcher->Update();
}

Health::Health() : state_(std::make_shared<State>()) {}

Health::~Health() = default;

void Health::Set(const std::string& service, bool is_serving) { state_->Set(service, is_serving); }

void Health::Shutdown() { state_->Shutdown(); }

std::shared_ptr<UnaryHandler> Health::Check(State* state, const std::shared_ptr<UnaryCall>& call,
                                            const Bytes& request) {
  const std::optional<std::string> service = ServiceOf(request);
  if (!service) {
    call->Fail(WrongMessage());
  } else if (const auto status = state->Find(*service)) {
    call->Answer(AnswerOf(*status));
  } else {
    call->Fail({StatusCode::kNotFound, "", 0});
  }
  return nullptr;
}

Service Health::MakeService() const {
  Service service;
  service.name = kServiceName;
  service.methods["Check"].unary = [state = state_](std::shared_ptr<UnaryCall> call,
                                                    Bytes request) {
    return Check(state.get(), call, request);
  };
  service.methods["Watch"].stream = [state = state_](std::shared_ptr<StreamCall> call) {
    call->Read();
    return std::make_shared<Watcher>(state, std::move(call));
  };
  return service;
}

}  // namespace recsys
