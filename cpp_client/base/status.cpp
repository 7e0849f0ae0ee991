#include "base/status.h"

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
    case ErrorKind::kArtifactNotFound:
    case ErrorKind::kForeignFile:
    case ErrorKind::kManifest:
    case ErrorKind::kNewerFormat:
    case ErrorKind::kMissingPart:
    case ErrorKind::kPartSize:
    case ErrorKind::kChecksum:
    case ErrorKind::kTarget:
    case ErrorKind::kRowsMemory:
    case ErrorKind::kDelta:
    case ErrorKind::kLibrary:
    case ErrorKind::kExecution:
    case ErrorKind::kConfig:
    case ErrorKind::kListen:
    case ErrorKind::kInternal:
      break;
  }
  return StatusCode::kInternal;
}

/// Whether the error's text may be sent to clients.
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

const char* StatusName(StatusCode code) {
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

const char* KindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kArtifactNotFound:
      return "artifact_not_found";
    case ErrorKind::kForeignFile:
      return "foreign_file";
    case ErrorKind::kManifest:
      return "manifest";
    case ErrorKind::kNewerFormat:
      return "newer_format";
    case ErrorKind::kMissingPart:
      return "missing_part";
    case ErrorKind::kPartSize:
      return "part_size";
    case ErrorKind::kChecksum:
      return "checksum";
    case ErrorKind::kTarget:
      return "target";
    case ErrorKind::kRowsMemory:
      return "rows_memory";
    case ErrorKind::kDelta:
      return "delta";
    case ErrorKind::kLibrary:
      return "library";
    case ErrorKind::kRequest:
      return "request";
    case ErrorKind::kRequestTooLarge:
      return "request_too_large";
    case ErrorKind::kBodyTooLarge:
      return "body_too_large";
    case ErrorKind::kModelNotFound:
      return "model_not_found";
    case ErrorKind::kNotReady:
      return "not_ready";
    case ErrorKind::kModelChange:
      return "model_change";
    case ErrorKind::kNotAllowed:
      return "not_allowed";
    case ErrorKind::kQueueFull:
      return "queue_full";
    case ErrorKind::kDraining:
      return "draining";
    case ErrorKind::kDeadlineExpired:
      return "deadline_expired";
    case ErrorKind::kExecution:
      return "execution";
    case ErrorKind::kConfig:
      return "config";
    case ErrorKind::kListen:
      return "listen";
    case ErrorKind::kInternal:
      break;
  }
  return "internal";
}

}  // namespace recsys
