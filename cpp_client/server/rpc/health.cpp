#include "server/rpc/health.h"

#include <grpc/health/v1/health.pb.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "server/rpc/wrong_message.h"

namespace recsys {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

Message AnswerOf(HealthCheckResponse::ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status);
  return Message::Of(response.SerializeAsString());
}

std::optional<std::string> ServiceOf(const Bytes& data) {
  HealthCheckRequest request;
  if (!ParseMessage(data, &request)) return std::nullopt;
  return request.service();
}

}  // namespace

/// Who serves, and who wants to know. Watchers are never called with the lock held.
struct Health::State {
  std::mutex mutex;
  std::map<std::string, HealthCheckResponse::ServingStatus> statuses;
  std::map<std::string, std::set<Watcher*>> watchers;
  bool is_shut_down = false;

  std::optional<HealthCheckResponse::ServingStatus> Find(const std::string& service) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = statuses.find(service);
    if (found == statuses.end()) return std::nullopt;
    return found->second;
  }
  void Set(const std::string& service, bool is_serving);
  void Shutdown();
  std::vector<std::shared_ptr<Watcher>> WatchersOf(const std::string& service);
};

/// One call of Watch. It writes one answer at a time, and what is the newest then: a client that
/// does not read costs nothing.
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
    // Clients close their side with the only request, after which nothing is read.
    if (!service_) call_->Finish(WrongMessage());
  }
  ~Watcher() override { Leave(); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  void OnCancelled() override { Leave(); }

  /// Writes the status where it is another than the last one that was written.
  void Update() {
    HealthCheckResponse::ServingStatus status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_writing_) return;
      status = state_->Find(*service_).value_or(HealthCheckResponse::SERVICE_UNKNOWN);
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
  std::optional<HealthCheckResponse::ServingStatus> last_;
  bool is_writing_ = false;
};

std::vector<std::shared_ptr<Health::Watcher>> Health::State::WatchersOf(
    const std::string& service) {
  std::vector<std::shared_ptr<Watcher>> found;
  const auto those = watchers.find(service);
  if (those == watchers.end()) return found;
  for (Watcher* watcher : those->second) {
    // One that is on its way out says so itself, soon.
    if (auto held = watcher->weak_from_this().lock()) found.push_back(std::move(held));
  }
  return found;
}

void Health::State::Set(const std::string& service, bool is_serving) {
  std::vector<std::shared_ptr<Watcher>> told;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (is_shut_down) return;
    statuses[service] =
        is_serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
    told = WatchersOf(service);
  }
  for (const auto& watcher : told) watcher->Update();
}

void Health::State::Shutdown() {
  std::vector<std::shared_ptr<Watcher>> told;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (std::exchange(is_shut_down, true)) return;
    for (auto& [service, status] : statuses) {
      status = HealthCheckResponse::NOT_SERVING;
      for (auto& watcher : WatchersOf(service)) told.push_back(std::move(watcher));
    }
  }
  for (const auto& watcher : told) watcher->Update();
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
