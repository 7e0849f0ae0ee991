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
    // gRPC's status for a call that reached a stopping server's socket but not its handler: it was
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

const ClientOutput& ClientResponse::output(const std::string& name) const& {
  std::string known;
  for (const ClientOutput& output : outputs) {
    if (output.name == name) return output;
    known += known.empty() ? output.name : ", " + output.name;
  }
  throw Error(ErrorKind::kRequest, "output: got '" + name + "', expected one of " + known);
}

ClientOutput ClientResponse::output(const std::string& name) && {
  const ClientResponse& self = *this;
  return self.output(name);
}

}  // namespace recsys
