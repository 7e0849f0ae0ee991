#include "server/models/reason.h"

#include <exception>
#include <new>
#include <system_error>

#include "base/log.h"
#include "recsys/error.h"
#include "server/models/files.h"

namespace recsys {
namespace {

// What operators have to mend: the text says all.
bool IsExpected(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kCapture:
    case ErrorKind::kModelChange:
    case ErrorKind::kModelNotFound:
    case ErrorKind::kRequest:
    case ErrorKind::kRequestTooLarge:
      return true;
    default:
      return IsArtifactError(kind);
  }
}

Reason Unexpected(const std::string& what, const char* error, const std::string& text) {
  LogRecord record;
  record.level = LogLevel::kError;
  record.message = what;
  record.exception = error;
  Log(record);
  return {text, false};
}

constexpr char kModelFailed[] =
    "the model failed while it was loaded or warmed up; the log says why";

}  // namespace

Reason ReasonOfCurrentException(const std::string& what) {
  try {
    throw;
  } catch (const Error& error) {
    if (!IsExpected(error.kind())) return Unexpected(what, error.what(), kModelFailed);
    Log(LogLevel::kError, what + ": " + error.what());
    return {error.what(), true};
  } catch (const std::bad_alloc& error) {
    return Unexpected(what, error.what(), "there is too little memory");
  } catch (const std::system_error& error) {
    return Unexpected(what, error.what(),
                      std::string("a file cannot be read (") + OsErrorName(error.code()) +
                          "); the log says more");
  } catch (const std::exception& error) {
    return Unexpected(what, error.what(), kModelFailed);
  } catch (...) {
    return Unexpected(what, "something that is no exception", kModelFailed);
  }
}

}  // namespace recsys
