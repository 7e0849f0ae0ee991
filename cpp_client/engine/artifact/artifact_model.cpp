#include "engine/artifact/artifact_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "recsys/model.h"

namespace recsys {
namespace {

class ArtifactModel : public ServedModel {
 public:
  explicit ArtifactModel(Model model) : model_(std::move(model)) {}

  const Signature& signature() const override { return model_.signature(); }
  Outputs Predict(const Batch& batch) override { return model_.Predict(batch); }
  bool shares_contexts() const override { return model_.shares_contexts(); }

  ContextCacheCounts context_cache() const override { return model_.context_cache(); }
  OutsideRowsCounts outside_rows() const override { return model_.outside_rows(); }
  void ResetContextCacheCounts() override { model_.ResetContextCacheCounts(); }

  std::optional<std::int64_t> NumOwned(const std::string& table,
                                       const std::vector<std::int64_t>& ids) const override {
    return model_.NumOwned(table, ids);
  }

  Delta PrepareDelta(const std::string& path) override {
    const std::shared_ptr<const PreparedDelta> prepared = model_.PrepareDelta(path);
    return {[this, prepared] { model_.ApplyDelta(*prepared); }, Model::NumDenseLeft(*prepared)};
  }

 private:
  Model model_;
};

/// Returns the parts of a text with commas between.
std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream from(text);
  for (std::string part; std::getline(from, part, ',');) parts.push_back(part);
  return parts;
}

}  // namespace

OpenedModel OpenArtifact(const std::string& path, const VersionSettings& settings) {
  ModelOptions options;
  options.target = settings.target.value_or("");
  options.verify_checksums = settings.verify_checksums;
  options.copy_rows = settings.copy_rows;
  options.lock_rows = settings.lock_rows;
  options.numa = settings.numa.value_or("");
  options.random_access = settings.random_access;
  options.context_cache_bytes = settings.context_cache_bytes;
  options.outside.nodes = Split(settings.rows);
  options.outside.replicas = Split(settings.rows_replicas);
  options.outside.over_bytes = settings.rows_over_bytes;
  options.outside.cache_bytes = settings.rows_cache_bytes;
  options.outside.deadline_ms = settings.rows_deadline_ms;
  options.outside.hedge_ms = settings.rows_hedge_ms;
  options.outside.zero_tables.assign(settings.rows_zero.begin(), settings.rows_zero.end());
  Model model = Model::Open(path, options);
  ModelInfo info{model.description(), model.description().digest};
  VerifiedRows rows = model.verified_rows();
  return {std::make_unique<ArtifactModel>(std::move(model)), std::move(info), std::move(rows)};
}

}  // namespace recsys
