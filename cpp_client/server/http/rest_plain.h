#ifndef RECSYS_SERVER_HTTP_REST_PLAIN_H_
#define RECSYS_SERVER_HTTP_REST_PLAIN_H_

// Requests in plain JSON, one list per row and no tensors: the form that recsys-predict reads too
// (serve/rest_plain.py).

#include <string>

#include "base/bytes.h"
#include "config/settings.h"
#include "recsys/request.h"
#include "server/core/hosted.h"
#include "server/core/request.h"
#include "server/http/json_value.h"
#include "wire/owned_bytes.h"

namespace recsys {

/// The inputs of a request. `raw` points into `body` and `owned`. Inputs that the signature does
/// not have, and more rows and IDs than one request may have, are not converted. Throws Error:
/// names the input, what it holds and what it should.
void ReadPlain(const JsonValue::Object& body, const Signature& signature, const BatchLimits& limits,
               OwnedBytes* owned, RawRequest* raw);

/// The answer: each output by name, one entry per row.
std::string WritePlain(const Hosted& hosted, const Rows& rows);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_REST_PLAIN_H_
