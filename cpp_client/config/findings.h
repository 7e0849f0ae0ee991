#ifndef RECSYS_CONFIG_FINDINGS_H_
#define RECSYS_CONFIG_FINDINGS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "config/check.h"

namespace recsys {

/// What a check has found so far.
class Findings {
 public:
  void Error(std::string text) { all_.push_back({true, std::move(text)}); }
  void Warning(std::string text) { all_.push_back({false, std::move(text)}); }
  /// The text of an Error that `look` throws is a finding, behind `before`. Whether it threw none.
  bool Try(const std::function<void()>& look, const std::string& before = "");
  const std::vector<Finding>& all() const { return all_; }

 private:
  std::vector<Finding> all_;
};

/// Whether the models that the settings name are there.
void CheckNames(const Settings& settings, const ModelsThere& models, Findings* findings);
/// The same, and their versions, manifests, targets and parts.
void CheckSource(const Settings& settings, const ModelsThere& models, Findings* findings);

}  // namespace recsys

#endif  // RECSYS_CONFIG_FINDINGS_H_
