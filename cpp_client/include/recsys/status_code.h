#ifndef RECSYS_STATUS_CODE_H_
#define RECSYS_STATUS_CODE_H_

namespace recsys {

/// gRPC's status codes, with their numbers.
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

/// Returns the name as gRPC writes it, such as "INVALID_ARGUMENT".
const char* StatusName(StatusCode code);

}  // namespace recsys

#endif  // RECSYS_STATUS_CODE_H_
