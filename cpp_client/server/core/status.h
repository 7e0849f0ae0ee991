#ifndef RECSYS_SERVER_CORE_STATUS_H_
#define RECSYS_SERVER_CORE_STATUS_H_

#include <cstdint>
#include <exception>
#include <string>

namespace recsys {

/// gRPC's status codes, by their numbers.
enum class StatusCode {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

/// How a call ends, with the text that the client gets.
struct Status {
  StatusCode code = StatusCode::kOk;
  std::string text;
  /// Above 0: when the client may come again; goes out as grpc-retry-pushback-ms.
  std::int64_t retry_after_ms = 0;

  bool ok() const { return code == StatusCode::kOk; }
};

/// The one table from errors to status codes (serve/errors.py). What is no Error, or one of
/// kInternal, is a fault of ours: its text could hold anything and stays in the log.
Status StatusOf(const std::exception& error);
/// Of whatever is being handled: to be called within a catch block.
Status StatusOfCurrentException();
/// The same, and the log gets what a fault of ours says; errors of a model were logged where they
/// happened.
Status LoggedStatusOfCurrentException();

/// "UNAVAILABLE" and so on, as gRPC's clients print it.
const char* NameOf(StatusCode code);
/// How requests are counted that end so: one of kOutcomes (server/observe/metrics.h).
const char* OutcomeOf(StatusCode code);
/// The same over HTTP (serve/errors.py).
int HttpStatusOf(StatusCode code);

}  // namespace recsys

#endif  // RECSYS_SERVER_CORE_STATUS_H_
