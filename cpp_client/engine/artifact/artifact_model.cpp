#include "engine/artifact/artifact_model.h"

#include <memory>
#include <utility>

#include "recsys/model.h"

namespace recsys {
namespace {

class ArtifactModel : public ServedModel {
 public:
  explicit ArtifactModel(Model model) : model_(std::move(model)) {}

  const Signature& signature() const override { return model_.signature(); }
  Outputs Predict(const Batch& batch) override { return model_.Predict(batch); }

  Delta PrepareDelta(const std::string& path) override {
    const std::shared_ptr<const PreparedDelta> prepared = model_.PrepareDelta(path);
    return {[this, prepared] { model_.ApplyDelta(*prepared); }, Model::NumDenseLeft(*prepared)};
  }

 private:
  Model model_;
};

}  // namespace

OpenedModel OpenArtifact(const std::string& path, const VersionSettings& settings) {
  ModelOptions options;
  options.target = settings.target.value_or("");
  options.verify_checksums = settings.verify_checksums;
  options.copy_rows = settings.copy_rows;
  options.lock_rows = settings.lock_rows;
  options.numa = settings.numa.value_or("");
  options.random_access = settings.random_access;
  Model model = Model::Open(path, options);
  const ModelDescription& description = model.description();
  ModelInfo info;
  info.name = settings.name.empty() ? description.name : settings.name;
  info.version = settings.version.empty() ? description.digest : settings.version;
  info.target = description.target;
  info.digest = description.digest;
  info.table_bytes = description.table_bytes;
  info.format_version = description.format_version;
  info.torch_version = description.torch_version;
  info.fbgemm_version = description.fbgemm_version;
  info.rows_pages = description.rows_pages;
  VerifiedRows rows = model.verified_rows();
  return {std::make_unique<ArtifactModel>(std::move(model)), std::move(info), std::move(rows)};
}

}  // namespace recsys
