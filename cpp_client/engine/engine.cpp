#include "engine/engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/allocator.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "engine/calls/health.h"
#include "engine/calls/host_calls.h"
#include "engine/calls/submitted_calls.h"
#include "engine/core/executor/executor_threads.h"
#include "engine/core/executor/pending_decisions.h"
#include "engine/core/gateway.h"
#include "engine/core/servable.h"
#include "engine/core/shadow.h"
#include "engine/protocols/kserve.h"
#include "engine/protocols/recsys_v1.h"
#include "engine/protocols/torchrec.h"
#include "engine/records.h"
#include "engine/routes/route_table.h"
#include "format/json/json.h"
#include "format/json/signature_json.h"
#include "port/polling/loops.h"
#include "port/rpc_server.h"
#include "recsys/error.h"
#include "rest/rest_port.h"

namespace recsys {
namespace {

// After a draining engine has answered every request: how long it waits for the last answers to be
// sent, and for streams to end by themselves.
constexpr double kLastAnswersS = 1.0;

}  // namespace

/// Objects that must outlive all versions and requests.
struct EngineCore {
  explicit EngineCore(const EngineSettings& settings)
      : records(settings), gateway(routes, &records), submitted(gateway, records) {}
  ~EngineCore() {
    // The last reference to a version may be a route; closing it answers through the gateway.
    routes.Clear();
  }
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  Records records;
  Routes routes;
  Gateway gateway;
  SubmittedCalls submitted;
};

Version::Version(std::shared_ptr<EngineCore> core, std::shared_ptr<Servable> servable)
    : core_(std::move(core)), servable_(std::move(servable)) {}

Version::~Version() { servable_->Close(); }

std::string Version::Description() const {
  const ModelInfo& info = servable_->info();
  return Json{{"name", info.name},
              {"version", info.version},
              {"target", info.target},
              {"digest", info.digest},
              {"table_bytes", info.table_bytes},
              {"format", info.format_version},
              {"torch", info.torch_version},
              {"fbgemm", info.fbgemm_version},
              {"rows_pages",
               {{"resident_bytes", info.rows_pages.resident_bytes},
                {"huge_bytes", info.rows_pages.huge_bytes},
                {"locked_bytes", info.rows_pages.locked_bytes}}},
              {"num_executors", servable_->settings().num_executors},
              {"signature", SignatureToJson(servable_->signature())}}
      .dump();
}

std::int64_t Version::ApplyDelta(const std::string& path) { return servable_->ApplyDelta(path); }

std::int64_t Version::NumOwned(const std::string& table, const std::string& ids) const {
  std::vector<std::int64_t> numbers(ids.size() / sizeof(std::int64_t));
  std::memcpy(numbers.data(), ids.data(), numbers.size() * sizeof(std::int64_t));
  return servable_->NumOwned(table, numbers).value_or(-1);
}

std::string Version::Totals() const { return servable_->Totals().Json(); }

void Version::Close() { servable_->Close(); }

struct Engine::Parts {
  Parts(const EngineSettings& settings, Opener opener)
      : core(std::make_shared<EngineCore>(settings)),
        open(std::move(opener)),
        host_calls(std::make_shared<HostCalls>(
            [records = &core->records](CallEvent event) { return records->Add(std::move(event)); },
            settings.call_ring)) {}

  /// Returns the engine's own services, and the methods that the owner answers.
  std::vector<Service> Services(const ConnectionLimits& limits,
                                const std::vector<std::string>& calls,
                                const std::vector<std::string>& streams) const;
  void Start(const PortSettings& settings, const std::vector<std::string>& calls,
             const std::vector<std::string>& streams, const std::optional<TlsPem>& pem,
             const http2::BalanceLimits& balance);
  bool WaitUntilIdle(double until_s) const;

  const std::shared_ptr<EngineCore> core;
  const Opener open;
  const std::shared_ptr<HostCalls> host_calls;
  Health health;
  /// Null for plain text.
  std::shared_ptr<TlsStore> tls;
  /// Guards the members below; the port is null before Listen.
  mutable std::mutex mutex;
  std::shared_ptr<http2::Loops> loops;
  std::unique_ptr<RpcServer> port;
  std::unique_ptr<RestPort> rest;
  /// Of both ports.
  ConnectionLimits port_limits;
  bool is_closed = false;
  bool was_idle = true;
};

namespace {

/// Splits "/package.Service/Method"; throws Error (kConfig).
std::pair<std::string, std::string> MethodOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (path.empty() || path[0] != '/' || slash == 0 || slash + 1 == path.size()) {
    throw Error(ErrorKind::kConfig,
                "calls: got " + Repr(path) + ", expected a name such as /package.Service/Method");
  }
  return {path.substr(1, slash - 1), path.substr(slash + 1)};
}

}  // namespace

std::vector<Service> Engine::Parts::Services(const ConnectionLimits& limits,
                                             const std::vector<std::string>& calls,
                                             const std::vector<std::string>& streams) const {
  std::map<std::string, Service> services;
  const auto add = [&services](Service service) { services[service.name] = std::move(service); };
  Gateway& gateway = core->gateway;
  add(RecsysV1Service(gateway, limits));
  add(KserveService(gateway, limits));
  add(TorchrecService(gateway));
  add(health.MakeService());
  const auto forward = [&services](const std::string& path, Method method) {
    const auto [service, name] = MethodOf(path);
    services[service].name = service;
    if (!services[service].methods.emplace(name, std::move(method)).second) {
      throw Error(ErrorKind::kConfig, "calls: got " + path + ", which the engine answers already");
    }
  };
  for (const std::string& path : calls) forward(path, host_calls->UnaryMethod());
  for (const std::string& path : streams) forward(path, host_calls->StreamMethod());
  std::vector<Service> all;
  for (auto& [name, service] : services) all.push_back(std::move(service));
  return all;
}

void Engine::Parts::Start(const PortSettings& settings, const std::vector<std::string>& calls,
                          const std::vector<std::string>& streams, const std::optional<TlsPem>& pem,
                          const http2::BalanceLimits& balance) {
  if (port != nullptr || is_closed) {
    throw Error(ErrorKind::kInternal, "the engine listens once, before it is closed");
  }
  RpcOptions options;
  options.host = settings.host;
  options.port = static_cast<int>(settings.port);
  options.connections = port_limits = settings.connections;
  if (pem) options.tls = tls = std::make_shared<TlsStore>(*pem);
  loops = std::make_shared<http2::Loops>(
      static_cast<int>(std::min<std::int64_t>(settings.num_threads, 1024)),
      [] { return std::make_unique<PendingDecisions>(); }, balance);
  options.loops = loops;
  port = std::make_unique<RpcServer>(std::move(options),
                                     Services(settings.connections, calls, streams));
}

bool Engine::Parts::WaitUntilIdle(double until_s) const {
  while (core->gateway.WaitUntilIdle(until_s)) {
    if (port == nullptr) return true;
    // Requests still in transit may arrive.
    const double last_s = std::min(until_s, MonotonicSeconds() + kLastAnswersS);
    if (port->WaitUntilIdle(last_s) && (rest == nullptr || rest->WaitUntilIdle(last_s)))
      return true;
    if (core->gateway.num_active() == 0) return true;
  }
  return core->gateway.num_active() == 0;
}

Engine::Engine(const EngineSettings& settings, Opener open) {
  settings.Check();
  if (settings.num_processors > 0) {
    Slots::Shared().Set(static_cast<int>(std::min<std::int64_t>(settings.num_processors, 1 << 20)));
  }
  parts_ = std::make_unique<Parts>(settings, std::move(open));
  SetLogSink([core = parts_->core](LogRecord record) { core->records.Add(std::move(record)); });
}

Engine::~Engine() {
  Close(0);
  SetLogSink({});
}

int Engine::event_fd() const { return parts_->core->records.event_fd(); }

std::vector<Event> Engine::Take(std::size_t at_most, bool all_answers) {
  return parts_->core->records.Take(at_most, all_answers);
}

int Engine::Listen(const PortSettings& settings, const std::vector<std::string>& calls,
                   const std::vector<std::string>& streams, const std::optional<TlsPem>& tls,
                   const http2::BalanceLimits& balance) {
  settings.Check();
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  parts_->Start(settings, calls, streams, tls, balance);
  return parts_->port->port();
}

void Engine::ListenHttp(int file, std::int64_t max_json_bytes) {
  FileHandle listening(file);
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  if (parts_->port == nullptr || parts_->rest != nullptr || parts_->is_closed) {
    throw Error(ErrorKind::kInternal, "the engine listens for HTTP once, after the inference port");
  }
  const auto state = std::make_shared<RestPortState>(parts_->port_limits);
  state->gateway = &parts_->core->gateway;
  state->router = &parts_->core->routes;
  state->max_json_bytes = max_json_bytes;
  state->hand_over = [records = &parts_->core->records](std::shared_ptr<HandedFile> connection,
                                                        std::string received) {
    records->Add(ConnectionEvent{std::move(connection), std::move(received)});
  };
  parts_->rest = std::make_unique<RestPort>(std::move(listening), state, parts_->loops);
}

void Engine::ReleaseConnection() {
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  if (parts_->rest != nullptr) parts_->rest->Released();
}

void Engine::SetTls(const TlsPem& tls) {
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  if (parts_->tls == nullptr) {
    throw Error(ErrorKind::kConfig, "tls: the port was not opened with TLS");
  }
  parts_->tls->Set(tls);
}

void Engine::SetHealth(const std::string& service, bool is_serving) {
  parts_->health.Set(service, is_serving);
}

std::shared_ptr<Version> Engine::Open(const std::string& path, const VersionSettings& settings,
                                      std::vector<std::string> warm_up) {
  settings.Check();
  OpenedModel opened = parts_->open(path, settings);
  if (!settings.name.empty()) opened.info.name = settings.name;
  if (!settings.version.empty()) opened.info.version = settings.version;
  auto servable = std::make_shared<Servable>(
      std::move(opened), settings,
      [gateway = &parts_->core->gateway](Request& request, const Status& status, Message answer) {
        gateway->End(request, status, std::move(answer));
      });
  servable->Open(warm_up);
  // Memory that was only needed for loading, such as a file's bytes.
  ReturnMemory();
  return std::make_shared<Version>(parts_->core, std::move(servable));
}

void Engine::Publish(const RouteSpec& spec, const std::vector<std::shared_ptr<Version>>& versions) {
  std::vector<std::shared_ptr<Servable>> servables;
  for (const std::shared_ptr<Version>& version : versions) {
    servables.push_back(version->servable_);
  }
  std::shared_ptr<const Shadow> shadow;
  for (const std::shared_ptr<Servable>& servable : servables) {
    if (spec.shadow_share == 0 || servable->version() != spec.shadow) continue;
    shadow = std::make_shared<const Shadow>(servable, servables,
                                            [records = &parts_->core->records](ShadowEvent pair) {
                                              return records->Add(std::move(pair));
                                            });
  }
  parts_->core->routes.Publish(
      std::make_shared<const RouteTable>(spec, servables, std::move(shadow)));
}

void Engine::Withdraw(const std::string& model) { parts_->core->routes.Withdraw(model); }

void Engine::Submit(std::int64_t ticket, const SubmitOptions& options, std::string message) {
  parts_->core->submitted.Submit(ticket, options, std::move(message));
}

void Engine::Cancel(std::int64_t ticket) { parts_->core->submitted.Cancel(ticket); }

void Engine::Answer(std::int64_t call, std::string message) {
  parts_->host_calls->Answer(call, std::move(message));
}

void Engine::Fail(std::int64_t call, const Status& status) {
  parts_->host_calls->Fail(call, status);
}

namespace {

Json JsonOf(const PortCounters& counters) {
  return Json{{"open", counters.num_open.load()},
              {"accepted", counters.accepted.load()},
              {"refused", counters.refused.load()},
              {"closed_silent", counters.closed_silent.load()},
              {"closed_resets", counters.closed_resets.load()},
              {"closed_control_frames", counters.closed_control_frames.load()},
              {"closed_headers", counters.closed_headers.load()},
              {"closed_memory", counters.closed_memory.load()},
              {"resets", counters.resets.load()},
              {"stalled_messages", counters.stalled_messages.load()},
              {"refused_calls", counters.refused_calls.load()},
              {"held_bytes", counters.held_bytes.load()}};
}

}  // namespace

std::string Engine::Counts() const {
  const EngineCore& core = *parts_->core;
  Json unrouted = Json::object();
  const OutcomeCounts counts = core.gateway.unrouted();
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    unrouted[OutcomeName(static_cast<Outcome>(i))] = counts[i];
  }
  const Records::Dropped dropped = core.records.dropped();
  Json counted{{"unrouted", std::move(unrouted)},
               {"active", core.gateway.num_active()},
               {"calls", parts_->host_calls->num_open()},
               {"dropped",
                {{"calls", dropped.calls},
                 {"ended", dropped.ended},
                 {"captured", dropped.captured},
                 {"answered", dropped.answered},
                 {"inputs", dropped.inputs},
                 {"shadow", dropped.shadow},
                 {"log", dropped.log}}}};
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  if (parts_->port != nullptr) {
    counted["port"] = JsonOf(parts_->port->counters());
    counted["port"]["threads"] = parts_->loops->size();
    counted["port"]["moved"] = parts_->loops->num_moved();
    counted["port"]["busy_us"] = static_cast<std::int64_t>(parts_->loops->busy_s() * 1e6);
  }
  return counted.dump();
}

std::int64_t Engine::num_active() const { return parts_->core->gateway.num_active(); }

void Engine::Drain() {
  parts_->core->gateway.Drain();
  parts_->health.Shutdown();
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  if (parts_->port != nullptr) parts_->port->Drain();
}

bool Engine::WaitUntilIdle(double timeout_s) {
  return parts_->WaitUntilIdle(MonotonicSeconds() + timeout_s);
}

bool Engine::Close(double grace_s) {
  {
    const std::lock_guard<std::mutex> lock(parts_->mutex);
    if (parts_->is_closed) return parts_->was_idle;
    parts_->is_closed = true;
  }
  Drain();
  parts_->was_idle = parts_->WaitUntilIdle(MonotonicSeconds() + grace_s);
  if (parts_->port != nullptr) parts_->port->Close();
  if (parts_->loops != nullptr) parts_->loops->Stop();
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  parts_->rest.reset();
  return parts_->was_idle;
}

}  // namespace recsys
