// The admin port's services: what operators may do, what they are told, and what is written down.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "inference/open_inference.pb.h"
#include "recsys/error.h"
#include "recsys/v1/admin.pb.h"
#include "server/models/manager.h"
#include "server/protocols/admin.h"
#include "server/protocols/admin_log.h"

namespace recsys {
namespace {

namespace wire = ::recsys::v1;

struct Ended {
  Status status;
  std::string message;
};

/// A call from 10.0.0.7, whose end can be waited for.
class FakeCall : public UnaryCall {
 public:
  std::string_view Metadata(std::string_view) const override { return {}; }
  double deadline_s() const override { return std::numeric_limits<double>::infinity(); }
  std::string peer() const override { return "ipv4:10.0.0.7:51022"; }
  std::string_view method() const override { return "/recsys.v1.AdminService/Rollback"; }
  void Answer(Message message) override { promise_.set_value({{}, message.Joined()}); }
  void Fail(const Status& status) override { promise_.set_value({status, ""}); }
  Ended Wait() { return promise_.get_future().get(); }

 private:
  std::promise<Ended> promise_;
};

/// Models in memory alone: "small" with versions 1 and 2.
class FakeSource : public ModelSource {
 public:
  std::vector<std::string> Names() override { return {"small"}; }
  std::vector<std::string> Versions(const std::string& name) override {
    if (name != "small") return {};
    return {"1", "2"};
  }
  std::string Path(const std::string& name, const std::string& version) override {
    if (name == "small" && (version == "1" || version == "2")) return version;
    throw Error(ErrorKind::kModelNotFound, "version: got '" + version + "'");
  }
  std::string DeltaPath(const std::string&, const std::string& file_name) override {
    if (file_name == "there") return file_name;
    throw Error(ErrorKind::kModelNotFound, "delta: got '" + file_name + "'");
  }
};

class FakeModel : public ServedModel {
 public:
  FakeModel() {
    signature_.dense = {{"x", 1}};
    signature_.sparse = {{"ids", {{"t", 10, IdPolicy::kReject}}, "sum", false}};
    signature_.outputs = {{"y", {}}};
  }
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "fake"; }
  Outputs Predict(const Batch& batch) override {
    auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(batch.num_rows));
    return {{Span<const float>(*values)}, values};
  }
  Delta PrepareDelta(const std::string&) override {
    return {[] {}, 0};
  }

 private:
  Signature signature_;
};

class Admin : public testing::Test {
 protected:
  Admin() {
    SetLogSink([this](const LogRecord& record) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (record.logger == "serve.admin") log_.push_back(record);
    });
    manager_.Rescan();
    Service kserve{"inference.GRPCInferenceService", {}};
    kserve.methods["RepositoryIndex"].unary = [](const std::shared_ptr<UnaryCall>& call,
                                                 const Bytes&) -> std::shared_ptr<UnaryHandler> {
      call->Answer(Message::Of("index"));
      return nullptr;
    };
    repository_ = RepositoryService(std::move(kserve), manager_, worker_);
  }
  ~Admin() override { SetLogSink({}); }

  ManagerParts Parts() {
    ManagerParts parts;
    parts.source = std::make_unique<FakeSource>();
    parts.host = [this](const std::string& name, const std::string& version, const std::string&,
                        const ModelSettings& settings) {
      OpenedModel opened;
      opened.model = std::make_unique<FakeModel>();
      opened.info.name = name;
      opened.info.version = version;
      opened.info.digest = "abc";
      opened.info.table_bytes = {{"t", 80}};
      auto hosted = std::make_shared<Hosted>(std::move(opened), settings, metrics_,
                                             [](Request&, const Status&, Message) {});
      hosted->Open();
      return hosted;
    };
    parts.settings_of = [this](const std::string&) -> const ModelSettings& { return settings_; };
    return parts;
  }

  static Ended Call(const Service& service, const std::string& method, const std::string& bytes) {
    const auto call = std::make_shared<FakeCall>();
    service.methods.at(method).unary(call, Bytes::Of(bytes));
    return call->Wait();
  }
  template <typename Response, typename Request>
  Response Ask(const std::string& method, const Request& request) {
    const Ended ended = Call(admin_, method, request.SerializeAsString());
    EXPECT_EQ(ended.status.text, "");
    Response response;
    EXPECT_TRUE(response.ParseFromString(ended.message));
    return response;
  }
  template <typename Request>
  void ExpectRefused(const std::string& method, const Request& request, StatusCode code,
                     const std::string& text) {
    const Ended ended = Call(admin_, method, request.SerializeAsString());
    EXPECT_EQ(ended.status.code, code) << ended.status.text;
    EXPECT_EQ(ended.status.text.substr(0, text.size()), text);
  }
  std::vector<std::string> lines(LogLevel level) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> found;
    for (const LogRecord& record : log_) {
      if (record.level == level) found.push_back(record.message);
    }
    return found;
  }

  std::mutex mutex_;
  std::vector<LogRecord> log_;
  Metrics metrics_;
  ModelSettings settings_;
  ModelManager manager_{Parts()};
  Worker worker_{4};
  Service admin_ = AdminService(manager_, worker_);
  Service repository_;
};

wire::SetRoutingRequest RoutingRequest(const std::string& serve, const std::string& canary = "",
                                       double percent = 0) {
  wire::SetRoutingRequest request;
  request.set_model("small");
  request.mutable_routing()->set_serve(serve);
  request.mutable_routing()->set_canary(canary);
  request.mutable_routing()->set_canary_percent(percent);
  return request;
}

TEST_F(Admin, AVersionsLifeFromLoadToUnload) {
  auto list = Ask<wire::ListModelsResponse>("ListModels", wire::ListModelsRequest());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).model(), "small");
  EXPECT_EQ(list.models(0).serving(), "2");
  EXPECT_EQ(list.models(0).routing().serve(), "latest");
  EXPECT_EQ(list.models(0).versions(0).state(), wire::MODEL_STATE_AVAILABLE);
  EXPECT_EQ(list.models(0).versions(1).state(), wire::MODEL_STATE_READY);

  wire::LoadModelRequest load;
  load.set_model("small");
  load.set_version("1");
  const auto version = Ask<wire::ModelVersion>("LoadModel", load);
  EXPECT_EQ(version.version(), "1");
  EXPECT_EQ(version.state(), wire::MODEL_STATE_READY);
  EXPECT_EQ(version.digest(), "abc");
  EXPECT_EQ(version.table_bytes(), 80);

  auto status = Ask<wire::ModelStatus>("SetRouting", RoutingRequest("2", "1", 100));
  EXPECT_EQ(status.routing().canary(), "1");
  EXPECT_EQ(manager_.Find("small", "", 0.5).primary->version(), "1");
  wire::RollbackRequest rollback;
  rollback.set_model("small");
  status = Ask<wire::ModelStatus>("Rollback", rollback);
  EXPECT_EQ(status.serving(), "2");
  EXPECT_EQ(status.routing().canary(), "");

  wire::ApplyDeltaRequest delta;
  delta.set_model("small");
  delta.set_delta("there");
  EXPECT_EQ(Ask<wire::ModelVersion>("ApplyDelta", delta).deltas(0), "there");

  wire::UnloadModelRequest unload;
  unload.set_model("small");
  unload.set_version("1");
  Ask<wire::UnloadModelResponse>("UnloadModel", unload);
  list = Ask<wire::ListModelsResponse>("ListModels", wire::ListModelsRequest());
  EXPECT_EQ(list.models(0).versions(0).state(), wire::MODEL_STATE_AVAILABLE);
}

TEST_F(Admin, WrongCallsAreRefusedAndChangeNothing) {
  const auto before = Ask<wire::ListModelsResponse>("ListModels", wire::ListModelsRequest());
  wire::LoadModelRequest load;
  ExpectRefused("LoadModel", load, StatusCode::kInvalidArgument, "model: got an empty text");
  load.set_model("../etc");
  ExpectRefused("LoadModel", load, StatusCode::kNotFound, "model: got '../etc'");
  load.set_model("small");
  load.set_version("9");
  ExpectRefused("LoadModel", load, StatusCode::kNotFound, "version: got '9'");
  wire::UnloadModelRequest unload;
  unload.set_model("x");
  ExpectRefused("UnloadModel", unload, StatusCode::kNotFound, "model: got 'x'");
  wire::SetRoutingRequest routing;
  routing.set_model("small");
  ExpectRefused("SetRouting", routing, StatusCode::kInvalidArgument, "routing: missing");
  ExpectRefused("SetRouting", RoutingRequest("", "1", 101), StatusCode::kInvalidArgument,
                "routing.canary_percent: got 101.0, expected above 0, up to 100");
  ExpectRefused("SetRouting", RoutingRequest("", "1", std::numeric_limits<double>::quiet_NaN()),
                StatusCode::kInvalidArgument, "routing.canary_percent: got nan");
  ExpectRefused("SetRouting", RoutingRequest("9"), StatusCode::kNotFound, "version: got '9'");
  wire::RollbackRequest rollback;
  rollback.set_model("small");
  ExpectRefused("Rollback", rollback, StatusCode::kFailedPrecondition, "model 'small' has had no");
  wire::ApplyDeltaRequest delta;
  delta.set_model("small");
  ExpectRefused("ApplyDelta", delta, StatusCode::kInvalidArgument, "delta: got an empty text");
  delta.set_delta("missing");
  ExpectRefused("ApplyDelta", delta, StatusCode::kNotFound, "delta: got 'missing'");
  EXPECT_EQ(Call(admin_, "Rollback", "\xff\xff").status.text,
            "message: got 2 bytes that are not a RollbackRequest");
  const auto after = Ask<wire::ListModelsResponse>("ListModels", wire::ListModelsRequest());
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
}

TEST_F(Admin, EveryCallIsALineOfTheLog) {
  wire::LoadModelRequest load;
  load.set_model("small");
  load.set_version("1");
  Call(admin_, "LoadModel", load.SerializeAsString());
  Call(admin_, "SetRouting", RoutingRequest("2", "1", 25).SerializeAsString());
  wire::UnloadModelRequest unload;
  unload.set_model("line\nbreak");
  Call(admin_, "UnloadModel", unload.SerializeAsString());
  Call(admin_, "Rollback", "\xff\xff");
  EXPECT_EQ(lines(LogLevel::kInfo),
            (std::vector<std::string>{
                "LoadModel {model: \"small\" version: \"1\"} from ipv4:10.0.0.7:51022: OK",
                "SetRouting {model: \"small\" routing { serve: \"2\" canary: \"1\" canary_percent: "
                "25.0 }} from ipv4:10.0.0.7:51022: OK"}));
  EXPECT_EQ(lines(LogLevel::kWarning),
            (std::vector<std::string>{
                "UnloadModel {model: \"line\\nbreak\"} from ipv4:10.0.0.7:51022: NOT_FOUND: model: "
                "got 'line\\nbreak', expected 'small' (or nothing: there is only one)",
                "Rollback {2 bytes that are no message} from ipv4:10.0.0.7:51022: "
                "INVALID_ARGUMENT: message: got 2 bytes that are not a RollbackRequest"}));
}

TEST_F(Admin, WhoGivesUpIsWrittenDownAndWhatWasBegunIsNotUndone) {
  std::shared_ptr<UnaryCall> asked;
  Method method;
  method.unary = [&asked](const std::shared_ptr<UnaryCall>& call,
                          const Bytes&) -> std::shared_ptr<UnaryHandler> {
    asked = call;
    return nullptr;
  };
  const Method logged =
      LoggedMethod("Rollback", std::make_shared<const wire::RollbackRequest>(), method);
  const auto call = std::make_shared<FakeCall>();
  const auto handler = logged.unary(call, Bytes::Of(""));
  ASSERT_NE(handler, nullptr);
  handler->Cancelled();
  asked->Answer(Message::Of("done"));
  EXPECT_EQ(call->Wait().message, "done");
  EXPECT_EQ(lines(LogLevel::kWarning),
            std::vector<std::string>{"Rollback {} from ipv4:10.0.0.7:51022: the caller gave up"});
  EXPECT_TRUE(lines(LogLevel::kInfo).empty());
}

TEST_F(Admin, LongMessagesAreCutInTheLog) {
  wire::RollbackRequest request;
  request.set_model(std::string(1000, 'x'));
  EXPECT_EQ(OneLine(request, request.SerializeAsString()), "model: \"" + std::string(292, 'x'));
}

TEST_F(Admin, OpenInferenceLoadsAndUnloads) {
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("small");
  (*load.mutable_parameters())["version"].set_string_param("1");
  EXPECT_EQ(Call(repository_, "RepositoryModelLoad", load.SerializeAsString()).status.text, "");
  EXPECT_EQ(manager_.Find("small", "1", 0.5).primary->version(), "1");
  (*load.mutable_parameters())["config"].set_string_param("{}");
  const Status refused = Call(repository_, "RepositoryModelLoad", load.SerializeAsString()).status;
  EXPECT_EQ(refused.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.text,
            "parameters: got 'config', expected at most 'version': models come from the server's "
            "own repository, with its own settings");
  inference::RepositoryModelUnloadRequest unload;
  unload.set_model_name("small");
  EXPECT_EQ(Call(repository_, "RepositoryModelUnload", unload.SerializeAsString()).status.text, "");
  EXPECT_FALSE(manager_.IsReady("small"));
  EXPECT_EQ(Call(repository_, "RepositoryIndex", "").message, "index");
  EXPECT_EQ(lines(LogLevel::kInfo).size(), 3U);
  EXPECT_EQ(lines(LogLevel::kInfo).at(1),
            "RepositoryModelUnload {model_name: \"small\"} from ipv4:10.0.0.7:51022: OK");
}

TEST_F(Admin, RefusalsAreWrittenDown) {
  const auto gate = AdminGate([](const recsys::Call&) {
    return Status{StatusCode::kUnauthenticated, "authorization: expected one", 0};
  });
  EXPECT_EQ(gate(FakeCall()).code, StatusCode::kUnauthenticated);
  EXPECT_EQ(lines(LogLevel::kWarning),
            std::vector<std::string>{"/recsys.v1.AdminService/Rollback from ipv4:10.0.0.7:51022: "
                                     "refused: authorization: expected one"});
  EXPECT_TRUE(AdminGate([](const recsys::Call&) { return Status(); })(FakeCall()).ok());
}

}  // namespace
}  // namespace recsys
