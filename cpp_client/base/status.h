#ifndef RECSYS_BASE_STATUS_H_
#define RECSYS_BASE_STATUS_H_

#include <cstdint>
#include <exception>
#include <string>

#include "recsys/status_code.h"

namespace recsys {

/// How a call ends, with the text that the client gets.
struct Status {
  StatusCode code = StatusCode::kOk;
  std::string text;
  /// Above 0: when the client may come again; goes out as grpc-retry-pushback-ms.
  std::int64_t retry_after_ms = 0;

  bool ok() const { return code == StatusCode::kOk; }
};

/// The one table from errors to status codes. An exception that is no Error, or is one of kind
/// kInternal, is a fault of the server: its text may hold anything and stays in the log.
Status StatusOf(const std::exception& error);
/// The status of the exception that is being handled: call it within a catch block.
Status StatusOfCurrentException();
/// The same; logs the text of a fault of the server. Errors of a model were logged where they
/// happened.
Status LoggedStatusOfCurrentException();

}  // namespace recsys

#endif  // RECSYS_BASE_STATUS_H_
