#include <string>

#include "recsys/client.h"

namespace recsys {
namespace {

ErrorKind KindOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return ErrorKind::kRequest;
    case StatusCode::kNotFound:
      return ErrorKind::kModelNotFound;
    case StatusCode::kResourceExhausted:
      return ErrorKind::kQueueFull;
    case StatusCode::kDeadlineExceeded:
      return ErrorKind::kDeadlineExpired;
    case StatusCode::kUnavailable:
    // What gRPC tells a call that had reached a stopping server's socket and not yet its handler:
    // not computed.
    case StatusCode::kCancelled:
      return ErrorKind::kNotReady;
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
      return ErrorKind::kNotAllowed;
    default:
      return ErrorKind::kExecution;
  }
}

}  // namespace

const char* StatusName(StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const auto number = static_cast<std::size_t>(code);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

ClientError::ClientError(StatusCode code, const std::string& message,
                         std::optional<std::int64_t> retry_after_ms, int num_attempts)
    : Error(KindOf(code), std::string(StatusName(code)) + ": " + message),
      code_(code),
      message_(message),
      retry_after_ms_(retry_after_ms),
      num_attempts_(num_attempts) {}

ClientResponse ClientResult::Take() {
  if (auto* error = std::get_if<ClientError>(&result_)) throw *error;
  return std::get<ClientResponse>(std::move(result_));
}

const ClientOutput& ClientResponse::output(const std::string& name) const {
  std::string known;
  for (const ClientOutput& output : outputs) {
    if (output.name == name) return output;
    known += known.empty() ? output.name : ", " + output.name;
  }
  throw Error(ErrorKind::kRequest, "output: got '" + name + "', expected one of " + known);
}

}  // namespace recsys
