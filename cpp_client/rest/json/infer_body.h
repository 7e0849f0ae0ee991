#ifndef RECSYS_REST_JSON_INFER_BODY_H_
#define RECSYS_REST_JSON_INFER_BODY_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace recsys {

/// Where a request over HTTP goes: what its address names.
struct RestTarget {
  std::string_view model;
  /// Empty for the version that the routing chooses.
  std::string_view version;
};

/// How an answer of Open Inference is written: its outputs by name, and whether as binary tensors.
struct InferForm {
  std::vector<std::pair<std::string, bool>> outputs;
  /// For outputs that the request does not name.
  bool is_binary = false;

  bool IsBinary(std::string_view name) const;
};

/// Converts the body of an Open Inference request: JSON, then the bytes of the tensors with
/// `binary_data_size`, in order. Appends a serialized ModelInferRequest to `message`. Returns false
/// for what JsonReader does not take, for parameters of requests other than `binary_data_output`,
/// and for every body with an error that serve/rest/tensors_json.py reports.
bool ReadInferBody(const RestTarget& target, std::string_view json, std::string_view binary,
                   std::string* message, InferForm* form);

}  // namespace recsys

#endif  // RECSYS_REST_JSON_INFER_BODY_H_
