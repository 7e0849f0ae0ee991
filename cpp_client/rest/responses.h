#ifndef RECSYS_REST_RESPONSES_H_
#define RECSYS_REST_RESPONSES_H_

#include <string>

#include "base/status.h"
#include "rest/json/answers.h"

namespace recsys {

/// Returns a whole HTTP response with the body of an answer.
std::string ResponseOf(const RestBody& body);

/// Returns the HTTP response for a request that was not answered (serve/errors.py: ERROR_KINDS).
std::string ResponseOf(const Status& status);

}  // namespace recsys

#endif  // RECSYS_REST_RESPONSES_H_
