#ifndef RECSYS_ERROR_H_
#define RECSYS_ERROR_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace recsys {

/// Kinds of errors that callers can tell apart.
enum class ErrorKind {
  // Artifacts.
  kArtifactNotFound,
  kForeignFile,
  kManifest,
  kNewerFormat,
  kMissingPart,
  kPartSize,
  kChecksum,
  kTarget,
  /// The system does not hold the rows in memory as requested.
  kRowsMemory,
  kDelta,
  /// A library that the artifact's operators need is missing or does not fit.
  kLibrary,
  // Requests.
  kRequest,
  kRequestTooLarge,
  kBodyTooLarge,
  kModelNotFound,
  kNotReady,
  kModelChange,
  kNotAllowed,
  kQueueFull,
  kDraining,
  kDeadlineExpired,
  kExecution,
  // Settings, the files they name, and the port.
  kConfig,
  kListen,
  /// A fault of this library; its text is only logged.
  kInternal,
};

/// An error with a readable text: field, got, expected. The text of a request's error is sent to
/// the client.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// The queue is full; the client should retry after `retry_after_ms`.
class QueueFullError : public Error {
 public:
  QueueFullError(const std::string& text, std::int64_t retry_after_ms)
      : Error(ErrorKind::kQueueFull, text), retry_after_ms_(retry_after_ms) {}
  std::int64_t retry_after_ms() const { return retry_after_ms_; }

 private:
  std::int64_t retry_after_ms_;
};

/// Returns the kind's name in snake case without its k, such as "queue_full".
const char* KindName(ErrorKind kind);

}  // namespace recsys

#endif  // RECSYS_ERROR_H_
