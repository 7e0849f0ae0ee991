#ifndef RECSYS_REST_JSON_ROWS_BODY_H_
#define RECSYS_REST_JSON_ROWS_BODY_H_

#include <string>
#include <string_view>

#include "recsys/request.h"
#include "recsys/signature.h"
#include "rest/json/infer_body.h"

namespace recsys {

/// Converts a request in JSON with an object for each row (`instances`, `dataframe_records`), for a
/// model with this signature. Appends a serialized recsys.v1.PredictRequest to `message`. Returns
/// false for what JsonReader does not take, for no rows, a context, a priority, columns of vectors,
/// floats and odd texts as IDs, lists and objects in fields of no input, and for every body with an
/// error that serve/rest/row_json.py reports.
bool ReadRowsBody(const RestTarget& target, std::string_view json, const Signature& signature,
                  const RequestLimits& limits, std::string* message);

}  // namespace recsys

#endif  // RECSYS_REST_JSON_ROWS_BODY_H_
