#ifndef RECSYS_REST_JSON_PREDICT_BODY_H_
#define RECSYS_REST_JSON_PREDICT_BODY_H_

#include <string>
#include <string_view>

#include "recsys/request.h"
#include "recsys/signature.h"
#include "rest/json/infer_body.h"

namespace recsys {

/// Converts a request in plain JSON, with one list per row, for a model with this signature.
/// Appends a serialized recsys.v1.PredictRequest to `message`. Returns false for what JsonReader
/// does not take, for rows given as objects, a priority and `num_rows`, and for every body with an
/// error that serve/rest/plain_json.py reports.
bool ReadPredictBody(const RestTarget& target, std::string_view json, const Signature& signature,
                     const RequestLimits& limits, std::string* message);

}  // namespace recsys

#endif  // RECSYS_REST_JSON_PREDICT_BODY_H_
