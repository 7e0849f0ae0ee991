#ifndef RECSYS_BASE_STATUS_H_
#define RECSYS_BASE_STATUS_H_

#include <cstdint>
#include <exception>
#include <string>

#include "recsys/status_code.h"

namespace recsys {

/// How a call ends, with the text sent to the client.
struct Status {
  StatusCode code = StatusCode::kOk;
  std::string text;
  /// If above 0: when the client may retry; sent as grpc-retry-pushback-ms.
  std::int64_t retry_after_ms = 0;

  bool ok() const { return code == StatusCode::kOk; }
};

/// The only mapping from errors to status codes. An exception that is not an Error, or is of kind
/// kInternal, is a fault of the server: its text may contain anything, so it is only logged.
Status StatusOf(const std::exception& error);
/// Returns the status of the exception being handled: call it within a catch block.
Status StatusOfCurrentException();
/// Like StatusOfCurrentException, and logs the text of a server fault. Errors of a model were
/// already logged where they occurred.
Status LoggedStatusOfCurrentException();

}  // namespace recsys

#endif  // RECSYS_BASE_STATUS_H_
