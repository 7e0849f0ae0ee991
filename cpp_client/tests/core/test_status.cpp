// The one table from errors to status codes.

#include <gtest/gtest.h>

#include <map>

#include "base/status.h"
#include "recsys/error.h"
#include "tests/core/fakes.h"

namespace recsys {
namespace {

constexpr const char* kFault = "the server failed on this request; its log says why";

TEST(StatusTable, EveryErrorOfARequestHasItsCodeAndText) {
  const std::map<ErrorKind, StatusCode> codes = {
      {ErrorKind::kRequest, StatusCode::kInvalidArgument},
      {ErrorKind::kRequestTooLarge, StatusCode::kInvalidArgument},
      {ErrorKind::kBodyTooLarge, StatusCode::kInvalidArgument},
      {ErrorKind::kModelNotFound, StatusCode::kNotFound},
      {ErrorKind::kNotReady, StatusCode::kUnavailable},
      {ErrorKind::kModelChange, StatusCode::kFailedPrecondition},
      {ErrorKind::kNotAllowed, StatusCode::kPermissionDenied},
      {ErrorKind::kQueueFull, StatusCode::kResourceExhausted},
      {ErrorKind::kDraining, StatusCode::kUnavailable},
      {ErrorKind::kDeadlineExpired, StatusCode::kDeadlineExceeded},
      {ErrorKind::kExecution, StatusCode::kInternal},
  };
  for (const auto& [kind, code] : codes) {
    const Status status = StatusOf(Error(kind, "its text"));
    EXPECT_EQ(status.code, code);
    EXPECT_EQ(status.text, "its text");
    EXPECT_EQ(status.retry_after_ms, 0);
  }
  EXPECT_EQ(StatusOf(QueueFullError("full", 7)).retry_after_ms, 7);
}

TEST(StatusTable, TheTextOfAFaultOfOursStaysInTheLog) {
  const HeardLog log;
  for (const ErrorKind kind : {ErrorKind::kInternal, ErrorKind::kConfig, ErrorKind::kChecksum,
                               ErrorKind::kListen, ErrorKind::kLibrary, ErrorKind::kRowsMemory}) {
    const Status status = StatusOf(Error(kind, "/etc/secret"));
    EXPECT_EQ(status.code, StatusCode::kInternal);
    EXPECT_EQ(status.text, kFault);
  }
  EXPECT_EQ(StatusOf(std::runtime_error("/etc/secret")).text, kFault);
  EXPECT_EQ(log.text(), "");
  const auto logged = [](auto error) {
    try {
      throw error;
    } catch (...) {
      return LoggedStatusOfCurrentException().text;
    }
  };
  EXPECT_EQ(logged(std::runtime_error("first")), kFault);
  EXPECT_EQ(logged(5), kFault);
  EXPECT_EQ(logged(Error(ErrorKind::kExecution, "second")), "second");
  EXPECT_EQ(logged(Error(ErrorKind::kRequest, "third")), "third");
  EXPECT_EQ(log.text(),
            "ERROR a request failed outside the model\nfirst\n"
            "ERROR a request failed outside the model\nan exception of an unknown type\n");
}

TEST(StatusTable, CodesHaveNames) {
  EXPECT_STREQ(StatusName(StatusCode::kOk), "OK");
  EXPECT_STREQ(StatusName(StatusCode::kUnauthenticated), "UNAUTHENTICATED");
  EXPECT_STREQ(StatusName(static_cast<StatusCode>(99)), "UNKNOWN");
}

}  // namespace
}  // namespace recsys
