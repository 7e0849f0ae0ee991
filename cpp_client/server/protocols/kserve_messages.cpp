#include "server/protocols/kserve_messages.h"

#include <cstdint>

#include "server/observe/release.h"
#include "server/observe/snapshot.h"
#include "wire/infer_tensors.h"

namespace recsys {
namespace {

constexpr char kPlatform[] = "recsys";
constexpr char kServerName[] = "recsys-serving";
// Of Triton's extensions, by the names that it gives them. Tensors are binary over HTTP; gRPC's
// are so as they are.
constexpr const char* kExtensions[] = {"model_repository", "model_configuration",
                                       "schedule_policy",  "statistics",
                                       "parameters",       "binary_tensor_data"};
constexpr double kNsPerSecond = 1e9;
constexpr double kMsPerSecond = 1e3;
constexpr int kNumPriorities = 3;

inference::DataType DataTypeOf(const TensorSpec& spec) {
  const std::string_view datatype = spec.datatype;
  if (datatype == "FP32") return inference::TYPE_FP32;
  return datatype == "INT64" ? inference::TYPE_INT64 : inference::TYPE_INT32;
}

/// TensorMetadata.
template <typename Tensor>
void Describe(const TensorSpec& spec, Tensor* tensor) {
  tensor->set_name(spec.name);
  tensor->set_datatype(spec.datatype);
  for (const std::int64_t size : spec.shape) tensor->add_shape(size);
}

/// ModelInput and ModelOutput.
template <typename Tensor>
void Configure(const TensorSpec& spec, Tensor* tensor) {
  tensor->set_name(spec.name);
  tensor->set_data_type(DataTypeOf(spec));
  for (const std::int64_t size : spec.shape) tensor->add_dims(size);
}

/// Whether a target, such as "cpu" or "cuda:0,cuda:1", has nothing but host memory.
bool IsOnCpu(std::string_view target) {
  for (std::size_t start = 0; start <= target.size();) {
    const std::size_t end = std::min(target.find(',', start), target.size());
    if (target.substr(start, end - start).substr(0, 3) != "cpu") return false;
    start = end + 1;
  }
  return true;
}

const char* StateOf(ModelState state) {
  switch (state) {
    case ModelState::kReady:
      return "READY";
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kDraining:
      return "UNLOADING";
    default:
      return "UNAVAILABLE";
  }
}

std::string ReasonOf(const ModelVersionStatus& version) {
  if (version.reason.empty() && version.state == ModelState::kAvailable) return "not loaded";
  return version.reason;
}

void Measure(const Histogram& times, inference::StatisticDuration* duration) {
  duration->set_count(static_cast<std::uint64_t>(times.count()));
  duration->set_ns(static_cast<std::uint64_t>(times.sum() * kNsPerSecond));
}

void Describe(const Metrics::Snapshot& numbers, inference::ModelStatistics* message) {
  message->set_name(numbers.model);
  message->set_version(numbers.version);
  message->set_last_inference(static_cast<std::uint64_t>(numbers.last_batch_s * kMsPerSecond));
  message->set_inference_count(static_cast<std::uint64_t>(numbers.batch_rows.sum()));
  message->set_execution_count(static_cast<std::uint64_t>(numbers.batch_rows.count()));
  inference::InferStatistics* times = message->mutable_inference_stats();
  times->mutable_success()->set_count(static_cast<std::uint64_t>(numbers.num_ok()));
  times->mutable_success()->set_ns(
      static_cast<std::uint64_t>(numbers.request.sum() * kNsPerSecond));
  times->mutable_fail()->set_count(static_cast<std::uint64_t>(numbers.num_failed()));
  Measure(numbers.stage(Stage::kQueue), times->mutable_queue());
  Measure(numbers.stage(Stage::kCollate), times->mutable_compute_input());
  Measure(numbers.stage(Stage::kExecute), times->mutable_compute_infer());
  Measure(numbers.stage(Stage::kRespond), times->mutable_compute_output());
  inference::MemoryUsage* memory = message->add_memory_usage();
  memory->set_type("tables");
  memory->set_byte_size(static_cast<std::uint64_t>(numbers.all_table_bytes()));
}

}  // namespace

inference::ServerMetadataResponse ServerMetadata() {
  inference::ServerMetadataResponse message;
  message.set_name(kServerName);
  message.set_version(kRelease);
  for (const char* extension : kExtensions) message.add_extensions(extension);
  return message;
}

inference::ModelMetadataResponse KserveModelMetadata(const Hosted& hosted,
                                                     const std::vector<std::string>& versions) {
  inference::ModelMetadataResponse message;
  message.set_name(hosted.name());
  for (const std::string& version : versions) message.add_versions(version);
  message.set_platform(kPlatform);
  for (const TensorSpec& spec : InputSpecs(hosted.signature())) {
    Describe(spec, message.add_inputs());
  }
  for (const TensorSpec& spec : OutputSpecs(hosted.signature())) {
    Describe(spec, message.add_outputs());
  }
  return message;
}

inference::ModelConfig KserveModelConfig(const Hosted& hosted) {
  const Signature& signature = hosted.signature();
  const std::string target = hosted.model().target_name();
  inference::ModelConfig config;
  config.set_name(hosted.name());
  config.set_platform(kPlatform);
  config.set_backend(kPlatform);
  for (const TensorSpec& spec : InputSpecs(signature)) Configure(spec, config.add_input());
  for (const TensorSpec& spec : OutputSpecs(signature)) Configure(spec, config.add_output());
  inference::ModelInstanceGroup* group = config.add_instance_group();
  group->set_name(hosted.name());
  group->set_count(static_cast<std::int32_t>(hosted.settings().num_executors));
  group->set_kind(IsOnCpu(target) ? inference::ModelInstanceGroup::KIND_CPU
                                  : inference::ModelInstanceGroup::KIND_GPU);
  inference::ModelDynamicBatching* batching = config.mutable_dynamic_batching();
  batching->set_max_queue_delay_microseconds(
      static_cast<std::uint64_t>(hosted.settings().limits.max_delay_us));
  batching->set_priority_levels(kNumPriorities);
  batching->set_default_priority_level(static_cast<std::uint64_t>(Priority::kNormal));
  std::string context;
  for (const std::string& name : signature.context) {
    if (!context.empty()) context += ',';
    context += name;
  }
  (*config.mutable_parameters())["target"].set_string_value(target);
  (*config.mutable_parameters())["context"].set_string_value(context);
  return config;
}

inference::RepositoryIndexResponse RepositoryIndex(const std::vector<ModelStatus>& statuses,
                                                   bool only_ready) {
  inference::RepositoryIndexResponse message;
  for (const ModelStatus& status : statuses) {
    for (const ModelVersionStatus& version : status.versions) {
      if (only_ready && version.state != ModelState::kReady) continue;
      auto* index = message.add_models();
      index->set_name(status.model);
      index->set_version(version.version);
      index->set_state(StateOf(version.state));
      index->set_reason(ReasonOf(version));
    }
  }
  return message;
}

std::vector<std::string> LoadedVersions(const std::vector<ModelStatus>& statuses,
                                        std::string_view model) {
  std::vector<std::string> versions;
  for (const ModelStatus& status : statuses) {
    if (status.model != model) continue;
    for (const ModelVersionStatus& version : status.versions) {
      if (version.state == ModelState::kReady) versions.push_back(version.version);
    }
  }
  return versions;
}

inference::ModelStatisticsResponse ModelStatistics(Gateway& gateway, std::string_view model,
                                                   std::string_view version) {
  if (!model.empty()) gateway.FindHosted(model, version);
  inference::ModelStatisticsResponse message;
  for (const Metrics::Snapshot& numbers : gateway.metrics().Snapshots()) {
    const bool is_wanted = (model.empty() || model == numbers.model) &&
                           (version.empty() || version == numbers.version);
    if (is_wanted) Describe(numbers, message.add_model_stats());
  }
  return message;
}

}  // namespace recsys
