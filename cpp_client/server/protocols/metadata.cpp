#include <cstdint>
#include <string>

#include "recsys/v1/predict.pb.h"
#include "server/protocols/recsys_v1.h"

namespace recsys {
namespace {

v1::IdPolicy PolicyOf(IdPolicy policy) {
  switch (policy) {
    case IdPolicy::kReject:
      return v1::ID_POLICY_REJECT;
    case IdPolicy::kHash:
      return v1::ID_POLICY_HASH;
    case IdPolicy::kZero:
      return v1::ID_POLICY_ZERO;
    case IdPolicy::kMapped:
      return v1::ID_POLICY_MAPPED;
  }
  return v1::ID_POLICY_UNSPECIFIED;
}

v1::Pooling PoolingOf(const std::string& pooling) {
  if (pooling == "sum") return v1::POOLING_SUM;
  if (pooling == "mean") return v1::POOLING_MEAN;
  return pooling == "none" ? v1::POOLING_NONE : v1::POOLING_UNSPECIFIED;
}

void Describe(const SparseInput& input, v1::SparseSignature* message) {
  message->set_name(input.name);
  message->set_pooling(PoolingOf(input.pooling));
  message->set_weighted(input.weighted);
  for (const TableUse& table : input.tables) {
    v1::TableUse* use = message->add_tables();
    use->set_name(table.name);
    use->set_num_embeddings(table.num_embeddings);
    use->set_id_policy(PolicyOf(table.id_policy));
  }
  if (const auto limit = input.id_limit()) message->set_id_limit(*limit);
}

void Describe(const Signature& signature, v1::ModelMetadata* message) {
  for (const DenseInput& input : signature.dense) {
    v1::DenseSignature* dense = message->add_dense();
    dense->set_name(input.name);
    dense->set_width(input.width);
  }
  for (const SparseInput& input : signature.sparse) Describe(input, message->add_sparse());
  for (const Output& output : signature.outputs) {
    v1::OutputSignature* described = message->add_outputs();
    described->set_name(output.name);
    for (const std::int64_t size : output.shape) described->add_shape(size);
  }
  for (const std::string& name : signature.context) message->add_context(name);
}

}  // namespace

std::string ModelMetadataOf(const Hosted& hosted, std::int64_t max_message_bytes) {
  v1::ModelMetadata message;
  message.set_model(hosted.name());
  message.set_version(hosted.version());
  message.set_target(hosted.model().target_name());
  Describe(hosted.signature(), &message);
  const BatchLimits& limits = hosted.settings().limits;
  message.mutable_limits()->set_max_rows(limits.max_request_rows);
  message.mutable_limits()->set_max_ids(limits.max_request_ids);
  message.mutable_limits()->set_max_message_bytes(max_message_bytes);
  const ModelInfo& info = hosted.info();
  message.mutable_artifact()->set_format(info.format_version);
  message.mutable_artifact()->set_torch(info.torch_version);
  message.mutable_artifact()->set_fbgemm(info.fbgemm_version);
  message.mutable_artifact()->set_digest(info.digest);
  for (const std::string& delta : hosted.deltas()) message.add_deltas(delta);
  return message.SerializeAsString();
}

}  // namespace recsys
