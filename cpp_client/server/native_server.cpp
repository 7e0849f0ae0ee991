#include "server/native_server.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/allocator.h"
#include "base/clock.h"
#include "base/log.h"
#include "recsys/error.h"
#include "server/core/gateway.h"
#include "server/http/metrics_server.h"
#include "server/http/rest_server.h"
#include "server/models/manager.h"
#include "server/observe/metrics.h"
#include "server/protocols/admin.h"
#include "server/protocols/services.h"
#include "server/rpc/health.h"
#include "server/rpc/reflection.h"
#include "server/rpc/rpc_server.h"
#include "server/rpc/token.h"
#include "server/rpc/worker.h"
#include "server/watch/watchers.h"

namespace recsys {
namespace {

// How long a draining server that has answered every request waits for its last answers to reach
// the wire, and for streams to end by themselves.
constexpr double kLastWordsS = 1.0;
// The first load, later looks through the repository, and changes that operators ask for: each may
// wait for others of its model.
constexpr int kNumWorkers = 8;
// So that a rollback does not wait for loads that were asked for again and again.
constexpr int kMostWorkers = 64;

std::vector<std::string> NamesOf(const std::vector<Service>& services) {
  std::vector<std::string> names = {Health::kServiceName, kReflectionServiceName};
  for (const Service& service : services) names.push_back(service.name);
  return names;
}

}  // namespace

struct NativeServer::Parts {
  Parts(std::unique_ptr<ModelSource> source, ServerSettings given, Opener opener,
        Watchers::ReadCounts log_counts)
      : settings(std::move(given)),
        open(std::move(opener)),
        watchers(std::make_unique<Watchers>(settings, metrics, std::move(log_counts))),
        manager(MakeManager(std::move(source))),
        gateway(*manager, metrics, watchers->all()) {}

  std::unique_ptr<ModelManager> MakeManager(std::unique_ptr<ModelSource> source) {
    ManagerParts parts;
    parts.source = std::move(source);
    parts.host = [this](const std::string& name, const std::string& version,
                        const std::string& path,
                        const ModelSettings& how) { return Host(name, version, path, how); };
    parts.settings_of = [this](const std::string& model) -> const ModelSettings& {
      return settings.SettingsOf(model);
    };
    parts.set_state = [this](const std::string& model, const std::string& version,
                             const char* state) { metrics.SetState(model, version, state); };
    parts.changed = [this] { UpdateHealth(); };
    return std::make_unique<ModelManager>(std::move(parts));
  }

  std::shared_ptr<Hosted> Host(const std::string& name, const std::string& version,
                               const std::string& path, const ModelSettings& how) {
    OpenedModel opened = open(path, how);
    opened.info.name = name;
    opened.info.version = version;
    auto hosted =
        std::make_shared<Hosted>(std::move(opened), how, metrics,
                                 [this](Request& request, const Status& status, Message answer) {
                                   gateway.End(request, status, std::move(answer));
                                 });
    hosted->Open();
    return hosted;
  }

  std::vector<Service> InferenceServices() {
    return {RecsysV1Service(gateway, settings.connections),
            KserveService(gateway, View(), settings.connections), TorchrecService(gateway)};
  }

  std::vector<Service> AdminServices() {
    return {
        AdminService(*manager, worker),
        RepositoryService(KserveService(gateway, View(), settings.connections), *manager, worker)};
  }

  ModelsView View() {
    return {[this] { return !gateway.is_draining() && manager->IsReady(); },
            [this] { return manager->statuses(); }};
  }

  /// The services with those that every port has.
  static std::vector<Service> Whole(std::vector<Service> services, const Health& of) {
    const std::vector<std::string> names = NamesOf(services);
    services.push_back(of.MakeService());
    services.push_back(MakeReflectionService(names));
    return services;
  }

  void Listen() {
    health.Set("", false);
    health.Set(kOurService, false);
    RpcOptions options;
    options.host = settings.host;
    options.port = static_cast<int>(settings.port);
    options.connections = settings.connections;
    options.tls = settings.tls;
    rpc = std::make_unique<RpcServer>(options, Whole(InferenceServices(), health));
    if (settings.metrics_port) {
      MetricsServer::Options page;
      page.host = settings.host;
      page.port = static_cast<int>(*settings.metrics_port);
      metrics_server = std::make_unique<MetricsServer>(metrics, page);
    }
    if (settings.http_port) {
      RestOptions rest_options;
      rest_options.host = settings.host;
      rest_options.port = static_cast<int>(*settings.http_port);
      rest_options.connections = settings.connections;
      rest_options.tls = settings.tls;
      rest = std::make_unique<RestServer>(gateway, View(), rest_options);
    }
    if (settings.admin) ListenForOperators(std::move(options));
  }

  void ListenForOperators(RpcOptions options) {
    token = std::make_unique<TokenCheck>(settings.admin->token_file);
    options.host = settings.admin->host;
    options.port = static_cast<int>(settings.admin->port);
    options.purpose = "serve administration on";
    options.authorize = AdminGate([this](const Call& call) { return token->Check(call); });
    admin_health.Set("", true);
    admin_health.Set(kAdminService, true);
    admin = std::make_unique<RpcServer>(std::move(options), Whole(AdminServices(), admin_health));
  }

  /// The server is healthy once it has looked through the repository and while at least one model
  /// answers.
  void UpdateHealth() {
    if (manager == nullptr) return;
    // Whoever asks last says last.
    const std::lock_guard lock(health_mutex);
    for (const std::string& name : manager->names()) {
      health.Set(std::string(kOurService) + "/" + name, manager->IsReady(name));
    }
    const bool is_ready = manager->IsReady();
    health.Set("", is_ready);
    health.Set(kOurService, is_ready);
  }

  bool WaitUntilAnswered(double until_s) {
    while (gateway.WaitUntilIdle(until_s)) {
      // Requests that were on their way may still turn up.
      if (rpc->WaitUntilIdle(std::min(until_s, MonotonicSeconds() + kLastWordsS))) return true;
      if (gateway.num_active() == 0) return true;
    }
    return false;
  }

  static constexpr const char* kOurService = "recsys.v1.PredictionService";
  static constexpr const char* kAdminService = "recsys.v1.AdminService";

  const ServerSettings settings;
  const Opener open;
  Metrics metrics;
  std::unique_ptr<Watchers> watchers;
  std::mutex health_mutex;
  Health health;
  Health admin_health;
  std::unique_ptr<ModelManager> manager;
  Gateway gateway;
  Worker worker{kNumWorkers, kMostWorkers};
  std::unique_ptr<TokenCheck> token;
  // What listens is the last to come and the first to go.
  std::unique_ptr<RpcServer> rpc;
  std::unique_ptr<MetricsServer> metrics_server;
  std::unique_ptr<RestServer> rest;
  std::unique_ptr<RpcServer> admin;
};

NativeServer::NativeServer(std::unique_ptr<ModelSource> source, const ServerSettings& settings,
                           Opener opener,
                           std::function<std::map<std::string, std::int64_t>()> log_counts)
    : parts_(std::make_unique<Parts>(std::move(source), settings, std::move(opener),
                                     std::move(log_counts))) {
  parts_->Listen();
}

NativeServer::~NativeServer() {
  parts_->admin.reset();
  parts_->rest.reset();
  parts_->rpc.reset();
  // Its versions answer what they have accepted through the gateway.
  parts_->manager.reset();
}

void NativeServer::Load(std::function<void(std::exception_ptr)> done) {
  parts_->worker.Run([parts = parts_.get(), done = std::move(done)] {
    std::exception_ptr error;
    try {
      parts->manager->Rescan();
      parts->UpdateHealth();
      parts->manager->CheckServing(false);
    } catch (...) {
      error = std::current_exception();
    }
    done(error);
  });
}

ReadyFacts NativeServer::ready_facts() const {
  ReadyFacts facts;
  for (const ModelStatus& status : parts_->manager->statuses()) {
    if (status.serving.empty()) continue;
    if (facts.num_models++ == 0) {
      facts.model = status.model;
      facts.version = status.serving;
    }
  }
  try {
    facts.target = parts_->gateway.FindHosted(facts.model, facts.version)->model().target_name();
  } catch (const Error&) {
    // An operator has unloaded it meanwhile.
  }
  facts.port = parts_->rpc->port();
  if (parts_->metrics_server) facts.metrics_port = parts_->metrics_server->port();
  if (parts_->rest) facts.http_port = parts_->rest->port();
  if (parts_->admin) facts.admin_port = parts_->admin->port();
  return facts;
}

void NativeServer::Rescan() {
  parts_->worker.Run([parts = parts_.get()] {
    try {
      parts->manager->Rescan();
    } catch (const std::exception& error) {
      Log(LogLevel::kError,
          std::string("the repository could not be looked through; what is served stays: ") +
              error.what());
    }
  });
}

bool NativeServer::Stop() {
  parts_->gateway.Drain();
  parts_->health.Shutdown();
  parts_->rpc->Drain();
  const double until_s = MonotonicSeconds() + parts_->settings.drain_timeout_s;
  const bool in_time = parts_->WaitUntilAnswered(until_s) || parts_->gateway.num_active() == 0;
  parts_->rpc->Close();
  const bool is_closed =
      parts_->manager->Close(in_time ? until_s : MonotonicSeconds() + kLastWordsS);
  if (parts_->rest) parts_->rest->Close();
  parts_->metrics_server.reset();
  if (parts_->admin) {
    parts_->admin_health.Shutdown();
    parts_->admin->Drain();
    parts_->admin->WaitUntilIdle(MonotonicSeconds() + kLastWordsS);
    parts_->admin->Close();
  }
  // They write what is left, and stay: threads of the HTTP port may still read a request, which is
  // refused then, and seen.
  if (in_time && is_closed) parts_->watchers->Close();
  return in_time && is_closed;
}

std::map<std::string, std::int64_t> NativeServer::outcomes() const {
  return parts_->metrics.Outcomes();
}

}  // namespace recsys
