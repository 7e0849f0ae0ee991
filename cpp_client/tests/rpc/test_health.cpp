// Health and reflection as their clients see them, over real sockets.

#include <google/protobuf/descriptor.pb.h>
#include <grpc/health/v1/health.grpc.pb.h>
#include <grpc/reflection/v1alpha/reflection.grpc.pb.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "echo.h"
#include "server/rpc/health.h"
#include "server/rpc/reflection.h"

namespace recsys {
namespace {

using grpc::StatusCode;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

class HealthPort : public testing::Test {
 protected:
  void SetUp() override {
    server_ = std::make_unique<RpcServer>(RpcOptions{}, std::vector{health_.MakeService()});
    stub_ = grpc::health::v1::Health::NewStub(ChannelTo(server_->port()));
  }
  grpc::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Check(&context, request, response);
  }

  Health health_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
};

/// A watch that a test reads from.
class Watch {
 public:
  Watch(grpc::health::v1::Health::Stub* stub, const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    reader_ = stub->Watch(&context_, request);
  }
  ~Watch() {
    context_.TryCancel();
    reader_->Finish();
  }
  int Next() {
    HealthCheckResponse response;
    return reader_->Read(&response) ? response.status() : -1;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
};

TEST_F(HealthPort, CheckSaysWhatWasSetAndNotFoundOfTheRest) {
  HealthCheckResponse response;
  EXPECT_EQ(Check("", &response).error_code(), StatusCode::NOT_FOUND);
  health_.Set("", true);
  health_.Set("a", false);
  EXPECT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  EXPECT_TRUE(Check("a", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("b", &response).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(HealthPort, WatchFollowsAServiceFromBeforeItIsKnown) {
  Watch watch(stub_.get(), "a");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  health_.Set("a", true);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  health_.Set("a", true);
  health_.Set("b", false);
  health_.Set("a", false);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthPort, AfterShutdownNothingServesForGood) {
  health_.Set("a", true);
  Watch watch(stub_.get(), "a");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  health_.Shutdown();
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  health_.Set("a", true);
  health_.Set("b", true);
  HealthCheckResponse response;
  EXPECT_TRUE(Check("a", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("b", &response).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(HealthPort, WatchersThatComeAndGoWhileStatusesChangeCrashNothing) {
  std::thread changing([this] {
    for (int i = 0; i < 2000; ++i) health_.Set("a", i % 2 == 0);
  });
  for (int i = 0; i < 200; ++i) {
    Watch watch(stub_.get(), "a");
    EXPECT_NE(watch.Next(), -1);
  }
  changing.join();
  health_.Set("a", true);
  Watch last(stub_.get(), "a");
  EXPECT_EQ(last.Next(), HealthCheckResponse::SERVING);
}

TEST_F(HealthPort, BytesThatAreNoMessageAreRefused) {
  const auto channel = ChannelTo(server_->port());
  for (const char* method : {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}) {
    ClientCall call(channel, method, "\xff");
    EXPECT_EQ(call.Wait().error_code(), StatusCode::INTERNAL);
    EXPECT_EQ(call.Wait().error_message(), "Exception deserializing request!");
  }
}

class Reflection : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> names = {"z.Last", "recsys.v1.PredictionService",
                                            kReflectionServiceName};
    server_ = std::make_unique<RpcServer>(RpcOptions{}, std::vector{MakeReflectionService(names)});
    stub_ = grpc::reflection::v1alpha::ServerReflection::NewStub(ChannelTo(server_->port()));
    stream_ = stub_->ServerReflectionInfo(&context_);
  }
  ServerReflectionResponse Ask(const ServerReflectionRequest& request) {
    ServerReflectionResponse response;
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(stream_->Read(&response));
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }
  static std::vector<std::string> FilesOf(const ServerReflectionResponse& response) {
    std::vector<std::string> names;
    for (const std::string& data : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(data));
      names.push_back(file.name());
    }
    return names;
  }

  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<grpc::reflection::v1alpha::ServerReflection::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>>
      stream_;
};

TEST_F(Reflection, ListsServicesInOrderOfTheirNames) {
  ServerReflectionRequest request;
  request.set_list_services("");
  const ServerReflectionResponse response = Ask(request);
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service())
    names.push_back(service.name());
  EXPECT_EQ(names, (std::vector<std::string>{kReflectionServiceName, "recsys.v1.PredictionService",
                                             "z.Last"}));
}

TEST_F(Reflection, DescribesTheFileOfEverySymbolOfEveryProtocol) {
  for (const char* symbol :
       {"recsys.v1.PredictionService", "recsys.v1.PredictRequest", "recsys.v1.PredictRequest.model",
        "recsys.v1.AdminService", "inference.GRPCInferenceService.ModelInfer",
        "predictor.Predictor", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
        "google.protobuf.FileDescriptorProto"}) {
    ServerReflectionRequest request;
    request.set_file_containing_symbol(symbol);
    const std::vector<std::string> files = FilesOf(Ask(request));
    EXPECT_FALSE(files.empty()) << symbol;
    EXPECT_EQ(std::set<std::string>(files.begin(), files.end()).size(), files.size());
  }
}

TEST_F(Reflection, GivesAFileByItsName) {
  ServerReflectionRequest request;
  request.set_file_by_filename("recsys/v1/predict.proto");
  EXPECT_EQ(FilesOf(Ask(request)).at(0), "recsys/v1/predict.proto");
}

TEST_F(Reflection, WhatIsNotThereIsNotFoundAndNothingAskedForIsWrong) {
  ServerReflectionRequest file;
  file.set_file_by_filename("missing.proto");
  ServerReflectionRequest symbol;
  symbol.set_file_containing_symbol("missing.Thing");
  ServerReflectionRequest extension;
  extension.mutable_file_containing_extension()->set_containing_type("recsys.v1.PredictRequest");
  extension.mutable_file_containing_extension()->set_extension_number(7);
  ServerReflectionRequest numbers;
  numbers.set_all_extension_numbers_of_type("missing.Thing");
  for (const auto& request : {file, symbol, extension, numbers}) {
    const ServerReflectionResponse response = Ask(request);
    EXPECT_EQ(response.error_response().error_code(), StatusCode::NOT_FOUND);
    EXPECT_EQ(response.error_response().error_message(), "not found");
  }
  const ServerReflectionResponse response = Ask({});
  EXPECT_EQ(response.error_response().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(response.error_response().error_message(), "invalid argument");
}

TEST_F(Reflection, AMessageWithoutExtensionsHasNone) {
  ServerReflectionRequest request;
  request.set_all_extension_numbers_of_type("recsys.v1.PredictRequest");
  const ServerReflectionResponse response = Ask(request);
  EXPECT_EQ(response.all_extension_numbers_response().base_type_name(), "recsys.v1.PredictRequest");
  EXPECT_EQ(response.all_extension_numbers_response().extension_number_size(), 0);
}

TEST_F(Reflection, TheStreamEndsWithTheClient) {
  ServerReflectionRequest request;
  request.set_list_services("");
  Ask(request);
  stream_->WritesDone();
  ServerReflectionResponse response;
  EXPECT_FALSE(stream_->Read(&response));
  EXPECT_TRUE(stream_->Finish().ok());
}

}  // namespace
}  // namespace recsys
