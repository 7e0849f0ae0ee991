// Open Inference over gRPC, inference.GRPCInferenceService, with what Triton's clients ask for
// beside it (serve/kserve.py).

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "recsys/error.h"
#include "server/protocols/kserve.h"
#include "server/protocols/kserve_messages.h"
#include "server/protocols/messages.h"
#include "server/protocols/request_stream.h"
#include "server/protocols/services.h"
#include "wire/cursor.h"
#include "wire/predict_request.h"

namespace recsys {
namespace {

constexpr char kService[] = "inference.GRPCInferenceService";

/// What the service's methods share.
struct Parts {
  Gateway& gateway;
  ModelsView models;
  std::int64_t max_stream_requests;
  Clock clock;
};
using SharedParts = std::shared_ptr<const Parts>;

Method ModelInfer(SharedParts parts) {
  Method method;
  method.unary = [parts = std::move(parts)](std::shared_ptr<UnaryCall> call, Bytes message) {
    return AnswerUnary(parts->gateway,
                       std::make_shared<InferCall>(parts->gateway, parts->clock, false),
                       std::move(call), std::move(message));
  };
  return method;
}

Method ModelStreamInfer(SharedParts parts) {
  Method method;
  method.stream = [parts = std::move(parts)](std::shared_ptr<StreamCall> call) {
    StreamRules rules;
    rules.make = [parts] {
      return std::make_shared<InferCall>(parts->gateway, parts->clock, true);
    };
    rules.in_order = true;
    rules.max_requests = parts->max_stream_requests;
    auto stream =
        std::make_shared<RequestStream>(parts->gateway, std::move(call), std::move(rules));
    stream->Start();
    return stream;
  };
  return method;
}

/// A request that has no fields.
void ReadNothing(std::string_view message, const char* kind) {
  Cursor cursor(message);
  while (cursor.Next()) cursor.Skip();
  if (!cursor.ok()) throw NoMessage(message, kind);
}

NamedModel ReadNamed(std::string_view message, const char* kind) {
  NamedModel named;
  if (!ReadNamedModel(message, &named)) throw NoMessage(message, kind);
  return named;
}

std::string ServerReady(const Parts& parts) {
  inference::ServerReadyResponse response;
  response.set_ready(parts.models.is_ready());
  return response.SerializeAsString();
}

std::string ModelReady(const Parts& parts, const NamedModel& named) {
  inference::ModelReadyResponse response;
  response.set_ready(IsModelReady(parts.gateway, named.name, named.version));
  return response.SerializeAsString();
}

std::string ModelMetadata(const Parts& parts, const NamedModel& named) {
  const std::shared_ptr<Hosted> hosted = parts.gateway.FindHosted(named.name, named.version);
  return KserveModelMetadata(*hosted, LoadedVersions(parts.models.statuses(), hosted->name()))
      .SerializeAsString();
}

std::string ModelConfig(const Parts& parts, const NamedModel& named) {
  inference::ModelConfigResponse response;
  *response.mutable_config() =
      KserveModelConfig(*parts.gateway.FindHosted(named.name, named.version));
  return response.SerializeAsString();
}

std::string Index(const Parts& parts, std::string_view message) {
  bool only_ready = false;
  Cursor cursor(message);
  while (cursor.Next()) {
    if (cursor.tag() == DelimitedTag(1)) {
      cursor.ReadText();
    } else if (cursor.tag() == VarintTag(2)) {
      only_ready = cursor.ReadVarint() != 0;
    } else {
      cursor.Skip();
    }
  }
  if (!cursor.ok()) throw NoMessage(message, "RepositoryIndexRequest");
  return RepositoryIndex(parts.models.statuses(), only_ready).SerializeAsString();
}

/// Loading and unloading, which this port does not.
Method Refused(const char* kind) {
  return MessageMethod(kService, [kind](std::string_view message) -> std::string {
    ReadNothing(message, kind);
    throw Error(ErrorKind::kNotAllowed,
                "loading and unloading are not allowed on this port; call the server's admin "
                "port, with its token");
  });
}

using NamedAnswer = std::string (*)(const Parts&, const NamedModel&);

Method NamedMethod(SharedParts parts, const char* kind, NamedAnswer answer) {
  return MessageMethod(kService,
                       [parts = std::move(parts), kind, answer](std::string_view message) {
                         return answer(*parts, ReadNamed(message, kind));
                       });
}

Method PlainMethod(SharedParts parts, const char* kind, std::string (*answer)(const Parts&)) {
  return MessageMethod(kService,
                       [parts = std::move(parts), kind, answer](std::string_view message) {
                         ReadNothing(message, kind);
                         return answer(*parts);
                       });
}

}  // namespace

Service KserveService(Gateway& gateway, ModelsView models, const ConnectionLimits& limits,
                      Clock clock) {
  const SharedParts parts = std::make_shared<const Parts>(
      Parts{gateway, std::move(models), limits.max_stream_requests, std::move(clock)});
  Service service;
  service.name = kService;
  auto& methods = service.methods;
  methods["ModelInfer"] = ModelInfer(parts);
  methods["ModelStreamInfer"] = ModelStreamInfer(parts);
  methods["ServerLive"] = PlainMethod(parts, "ServerLiveRequest", [](const Parts&) {
    inference::ServerLiveResponse response;
    response.set_live(true);
    return response.SerializeAsString();
  });
  methods["ServerReady"] = PlainMethod(parts, "ServerReadyRequest", ServerReady);
  methods["ServerMetadata"] = PlainMethod(parts, "ServerMetadataRequest", [](const Parts&) {
    return ServerMetadata().SerializeAsString();
  });
  methods["ModelReady"] = NamedMethod(parts, "ModelReadyRequest", ModelReady);
  methods["ModelMetadata"] = NamedMethod(parts, "ModelMetadataRequest", ModelMetadata);
  methods["ModelConfig"] = NamedMethod(parts, "ModelConfigRequest", ModelConfig);
  methods["ModelStatistics"] =
      NamedMethod(parts, "ModelStatisticsRequest", [](const Parts& all, const NamedModel& named) {
        return ModelStatistics(all.gateway, named.name, named.version).SerializeAsString();
      });
  methods["RepositoryIndex"] =
      MessageMethod(kService, [parts](std::string_view message) { return Index(*parts, message); });
  methods["RepositoryModelLoad"] = Refused("RepositoryModelLoadRequest");
  methods["RepositoryModelUnload"] = Refused("RepositoryModelUnloadRequest");
  return service;
}

}  // namespace recsys
