#include "server/rpc/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpc/health/v1/health.pb.h>
#include <grpc/reflection/v1alpha/reflection.pb.h>
#include <inference/open_inference.pb.h>
#include <predictor/predictor.pb.h>
#include <recsys/v1/admin.pb.h>
#include <recsys/v1/predict.pb.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "server/rpc/wrong_message.h"

namespace recsys {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

// A file's descriptors are in the program only if something of it is named.
void LinkProtocols() {
  recsys::v1::PredictRequest::descriptor();
  recsys::v1::ListModelsRequest::descriptor();
  inference::ModelInferRequest::descriptor();
  predictor::PredictionRequest::descriptor();
  grpc::health::v1::HealthCheckRequest::descriptor();
}

void SetError(StatusCode code, const char* text, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(static_cast<int>(code));
  response->mutable_error_response()->set_error_message(text);
}

// The file, then what it needs, each once.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>* seen,
             ServerReflectionResponse* response) {
  if (!seen->insert(&file).second) return;
  FileDescriptorProto proto;
  file.CopyTo(&proto);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(
      proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), seen, response);
}

void SetFile(const FileDescriptor* file, ServerReflectionResponse* response) {
  if (file == nullptr) return SetError(StatusCode::kNotFound, "not found", response);
  std::set<const FileDescriptor*> seen;
  AddFile(*file, &seen, response);
}

void SetExtension(const grpc::reflection::v1alpha::ExtensionRequest& asked,
                  ServerReflectionResponse* response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* type = pool.FindMessageTypeByName(asked.containing_type());
  const FieldDescriptor* extension =
      type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
  SetFile(extension == nullptr ? nullptr : extension->file(), response);
}

void SetExtensionNumbers(const std::string& name, ServerReflectionResponse* response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* type = pool.FindMessageTypeByName(name);
  if (type == nullptr) return SetError(StatusCode::kNotFound, "not found", response);
  std::vector<const FieldDescriptor*> extensions;
  pool.FindAllExtensions(type, &extensions);
  std::vector<int> numbers;
  for (const FieldDescriptor* extension : extensions) numbers.push_back(extension->number());
  std::sort(numbers.begin(), numbers.end());
  auto& found = *response->mutable_all_extension_numbers_response();
  found.set_base_type_name(type->full_name());
  for (const int number : numbers) found.add_extension_number(number);
}

ServerReflectionResponse Answer(const ServerReflectionRequest& request,
                                const std::vector<std::string>& services) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), &response);
      break;
    case ServerReflectionRequest::kFileContainingExtension:
      SetExtension(request.file_containing_extension(), &response);
      break;
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), &response);
      break;
    case ServerReflectionRequest::kListServices:
      response.mutable_list_services_response();
      for (const std::string& name : services)
        response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(StatusCode::kInvalidArgument, "invalid argument", &response);
      break;
  }
  return response;
}

// One stream: each request is answered, and the next one read once its answer has left.
class Reflecting final : public StreamHandler {
 public:
  Reflecting(std::shared_ptr<StreamCall> call,
             std::shared_ptr<const std::vector<std::string>> services)
      : call_(std::move(call)), services_(std::move(services)) {}

  void OnMessage(Bytes message) override {
    ServerReflectionRequest request;
    if (!ParseMessage(message, &request)) return call_->Finish(WrongMessage());
    call_->Write(Message::Of(Answer(request, *services_).SerializeAsString()),
                 [call = call_](bool ok) {
                   if (ok) call->Read();
                 });
  }
  void OnHalfClose() override { call_->Finish({}); }
  void OnCancelled() override {}

 private:
  const std::shared_ptr<StreamCall> call_;
  const std::shared_ptr<const std::vector<std::string>> services_;
};

}  // namespace

Service MakeReflectionService(std::vector<std::string> services) {
  LinkProtocols();
  std::sort(services.begin(), services.end());
  auto names = std::make_shared<const std::vector<std::string>>(std::move(services));
  Service service;
  service.name = kReflectionServiceName;
  service.methods["ServerReflectionInfo"].stream = [names](std::shared_ptr<StreamCall> call) {
    call->Read();
    return std::make_shared<Reflecting>(std::move(call), names);
  };
  return service;
}

}  // namespace recsys
