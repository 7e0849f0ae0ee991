#include "server/core/status.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr const char* kFault = "the server failed on this request; its log says why";

StatusCode CodeOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kRequest:
    case ErrorKind::kRequestTooLarge:
    case ErrorKind::kBodyTooLarge:
      return StatusCode::kInvalidArgument;
    case ErrorKind::kModelNotFound:
      return StatusCode::kNotFound;
    case ErrorKind::kNotReady:
    case ErrorKind::kDraining:
      return StatusCode::kUnavailable;
    case ErrorKind::kModelChange:
      return StatusCode::kFailedPrecondition;
    case ErrorKind::kNotAllowed:
      return StatusCode::kPermissionDenied;
    case ErrorKind::kQueueFull:
      return StatusCode::kResourceExhausted;
    case ErrorKind::kDeadlineExpired:
      return StatusCode::kDeadlineExceeded;
    default:
      return StatusCode::kInternal;
  }
}

/// Whether a text is meant for clients.
bool IsForClients(const Error& error) {
  return error.kind() == ErrorKind::kExecution || CodeOf(error.kind()) != StatusCode::kInternal;
}

void LogFault(const char* what) {
  LogRecord record;
  record.level = LogLevel::kError;
  record.message = "a request failed outside the model";
  record.exception = what;
  Log(std::move(record));
}

}  // namespace

Status StatusOf(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (known == nullptr || !IsForClients(*known)) return {StatusCode::kInternal, kFault, 0};
  const auto* const full = dynamic_cast<const QueueFullError*>(known);
  return {CodeOf(known->kind()), known->what(), full == nullptr ? 0 : full->retry_after_ms()};
}

Status StatusOfCurrentException() {
  try {
    throw;
  } catch (const std::exception& error) {
    return StatusOf(error);
  } catch (...) {
    return {StatusCode::kInternal, kFault, 0};
  }
}

Status LoggedStatusOfCurrentException() {
  try {
    throw;
  } catch (const std::exception& error) {
    const auto* const known = dynamic_cast<const Error*>(&error);
    if (known == nullptr || !IsForClients(*known)) {
      LogFault(error.what());
    }
    return StatusOf(error);
  } catch (...) {
    LogFault("an exception of an unknown type");
    return {StatusCode::kInternal, kFault, 0};
  }
}

const char* NameOf(StatusCode code) {
  static constexpr const char* kNames[] = {
      "OK",
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
      "UNAUTHENTICATED",
  };
  const auto at = static_cast<unsigned>(code);
  return at < sizeof(kNames) / sizeof(*kNames) ? kNames[at] : "UNKNOWN";
}

const char* OutcomeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kResourceExhausted:
      return "rejected";
    case StatusCode::kDeadlineExceeded:
      return "expired";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kUnavailable:
      return "unavailable";
    default:
      return "failed";
  }
}

int HttpStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 200;
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kPermissionDenied:
      return 403;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kFailedPrecondition:
      return 409;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace recsys
