#include "server/protocols/admin.h"

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "inference/open_inference.pb.h"
#include "recsys/error.h"
#include "recsys/v1/admin.pb.h"
#include "server/protocols/admin_log.h"
#include "server/protocols/messages.h"

namespace recsys {
namespace {

namespace wire = ::recsys::v1;

constexpr char kAdminService[] = "recsys.v1.AdminService";
// The one parameter of a load that has a meaning here.
constexpr char kVersion[] = "version";
constexpr std::size_t kMaxToldChars = 64;
constexpr std::size_t kMaxMethodChars = 100;

template <typename Request>
Request Parsed(std::string_view data) {
  Request request;
  const bool is_short = data.size() <= std::numeric_limits<int>::max();
  if (!is_short || !request.ParseFromArray(data.data(), static_cast<int>(data.size()))) {
    throw NoMessage(data, Request::descriptor()->name());
  }
  return request;
}

/// From message to message, in the transport's thread.
template <typename Request, typename Answer>
Method QuickMethod(const std::string& service, Answer answer) {
  return MessageMethod(service, [answer](std::string_view data) {
    return answer(Parsed<Request>(data)).SerializeAsString();
  });
}

/// The same in a thread that may block.
template <typename Request, typename Answer>
Method BlockingMethod(const std::string& service, Worker& worker, Answer answer) {
  Method method;
  method.unary = [&worker, quick = QuickMethod<Request>(service, answer)](
                     const std::shared_ptr<UnaryCall>& call,
                     const Bytes& message) -> std::shared_ptr<UnaryHandler> {
    worker.Run([quick, call, message] { quick.unary(call, message); });
    return nullptr;
  };
  return method;
}

/// Methods of a service that are logged.
class LoggedService {
 public:
  LoggedService(Service service, Worker& worker) : service_(std::move(service)), worker_(worker) {}

  template <typename Request>
  void Put(const std::string& name, Method method) {
    service_.methods[name] =
        LoggedMethod(name, std::make_shared<const Request>(), std::move(method));
  }
  /// A method that may block.
  template <typename Request, typename Answer>
  void PutBlocking(const std::string& name, Answer answer) {
    Put<Request>(name, BlockingMethod<Request>(service_.name, worker_, std::move(answer)));
  }
  Service& service() { return service_; }

 private:
  Service service_;
  Worker& worker_;
};

wire::ModelState StateOf(ModelState state) {
  switch (state) {
    case ModelState::kAvailable:
      return wire::MODEL_STATE_AVAILABLE;
    case ModelState::kLoading:
      return wire::MODEL_STATE_LOADING;
    case ModelState::kReady:
      return wire::MODEL_STATE_READY;
    case ModelState::kDraining:
      return wire::MODEL_STATE_DRAINING;
    case ModelState::kFailed:
      return wire::MODEL_STATE_FAILED;
  }
  return wire::MODEL_STATE_UNSPECIFIED;
}

wire::ModelVersion MessageOf(const ModelVersionStatus& status) {
  wire::ModelVersion message;
  message.set_version(status.version);
  message.set_state(StateOf(status.state));
  message.set_reason(status.reason);
  message.set_digest(status.digest);
  for (const std::string& delta : status.deltas) message.add_deltas(delta);
  message.set_table_bytes(status.table_bytes);
  return message;
}

wire::ModelStatus MessageOf(const ModelStatus& status) {
  wire::ModelStatus message;
  message.set_model(status.model);
  wire::Routing& routing = *message.mutable_routing();
  routing.set_serve(status.routing.serve);
  routing.set_canary(status.routing.canary);
  routing.set_canary_percent(status.routing.canary_percent);
  routing.set_shadow(status.routing.shadow);
  routing.set_shadow_percent(status.routing.shadow_percent);
  message.set_serving(status.serving);
  for (const ModelVersionStatus& version : status.versions) {
    *message.add_versions() = MessageOf(version);
  }
  return message;
}

void CheckModel(const std::string& model) {
  if (!model.empty()) return;
  throw Error(ErrorKind::kRequest, "model: got an empty text, expected the name of a model");
}

Routing RoutingOf(const wire::SetRoutingRequest& request) {
  if (!request.has_routing()) {
    throw Error(ErrorKind::kRequest, "routing: missing, expected which version is to answer");
  }
  const wire::Routing& message = request.routing();
  Routing routing;
  if (!message.serve().empty()) routing.serve = message.serve();
  routing.canary = message.canary();
  routing.canary_percent = message.canary_percent();
  routing.shadow = message.shadow();
  routing.shadow_percent = message.shadow_percent();
  try {
    routing.Check();
  } catch (const Error& error) {
    throw Error(ErrorKind::kRequest, std::string("routing.") + error.what());
  }
  return routing;
}

wire::ListModelsResponse ListModels(const ModelManager& manager) {
  wire::ListModelsResponse response;
  for (const ModelStatus& status : manager.statuses()) *response.add_models() = MessageOf(status);
  return response;
}

wire::ModelVersion ApplyDelta(ModelManager& manager, const wire::ApplyDeltaRequest& request) {
  CheckModel(request.model());
  if (request.delta().empty()) {
    throw Error(
        ErrorKind::kRequest,
        "delta: got an empty text, expected the name of a file in the model's folder deltas");
  }
  return MessageOf(manager.ApplyDelta(request.model(), request.version(), request.delta()));
}

/// The version that a call about the repository names; empty where it names none.
template <typename Request>
std::string VersionOf(const Request& request) {
  const auto version = request.parameters().find(kVersion);
  return version == request.parameters().end() ? "" : version->second.string_param();
}

void CheckParameters(const inference::RepositoryModelLoadRequest& request) {
  std::set<std::string> unknown;
  for (const auto& [name, value] : request.parameters()) {
    if (name != kVersion) unknown.insert(name);
  }
  if (unknown.empty()) return;
  throw Error(ErrorKind::kRequest,
              "parameters: got " + Repr(FirstChars(*unknown.begin(), kMaxToldChars)) +
                  ", expected at most 'version': models come from the server's own repository, "
                  "with its own settings");
}

}  // namespace

Service AdminService(ModelManager& manager, Worker& worker) {
  LoggedService admin({kAdminService, {}}, worker);
  admin.Put<wire::ListModelsRequest>("ListModels",
                                     QuickMethod<wire::ListModelsRequest>(
                                         kAdminService, [&manager](const wire::ListModelsRequest&) {
                                           return ListModels(manager);
                                         }));
  admin.PutBlocking<wire::LoadModelRequest>(
      "LoadModel", [&manager](const wire::LoadModelRequest& request) {
        CheckModel(request.model());
        return MessageOf(manager.Load(request.model(), request.version()));
      });
  admin.PutBlocking<wire::UnloadModelRequest>("UnloadModel",
                                              [&manager](const wire::UnloadModelRequest& request) {
                                                CheckModel(request.model());
                                                manager.Unload(request.model(), request.version());
                                                return wire::UnloadModelResponse();
                                              });
  admin.PutBlocking<wire::SetRoutingRequest>(
      "SetRouting", [&manager](const wire::SetRoutingRequest& request) {
        CheckModel(request.model());
        return MessageOf(manager.SetRouting(request.model(), RoutingOf(request)));
      });
  admin.PutBlocking<wire::RollbackRequest>("Rollback",
                                           [&manager](const wire::RollbackRequest& request) {
                                             CheckModel(request.model());
                                             return MessageOf(manager.Rollback(request.model()));
                                           });
  admin.PutBlocking<wire::ApplyDeltaRequest>(
      "ApplyDelta",
      [&manager](const wire::ApplyDeltaRequest& request) { return ApplyDelta(manager, request); });
  return std::move(admin.service());
}

Service RepositoryService(Service kserve, ModelManager& manager, Worker& worker) {
  LoggedService service(std::move(kserve), worker);
  service.Put<inference::RepositoryIndexRequest>(
      "RepositoryIndex", std::move(service.service().methods["RepositoryIndex"]));
  service.PutBlocking<inference::RepositoryModelLoadRequest>(
      "RepositoryModelLoad", [&manager](const inference::RepositoryModelLoadRequest& request) {
        CheckParameters(request);
        manager.Load(request.model_name(), VersionOf(request));
        return inference::RepositoryModelLoadResponse();
      });
  service.PutBlocking<inference::RepositoryModelUnloadRequest>(
      "RepositoryModelUnload", [&manager](const inference::RepositoryModelUnloadRequest& request) {
        manager.Unload(request.model_name(), VersionOf(request));
        return inference::RepositoryModelUnloadResponse();
      });
  return std::move(service.service());
}

std::function<Status(const Call&)> AdminGate(std::function<Status(const Call&)> check) {
  return [check = std::move(check)](const Call& call) {
    Status status = check(call);
    if (!status.ok()) {
      LogAdmin(LogLevel::kWarning, std::string(FirstChars(call.method(), kMaxMethodChars)) +
                                       " from " + call.peer() + ": refused: " + status.text);
    }
    return status;
  };
}

}  // namespace recsys
