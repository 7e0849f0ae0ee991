#ifndef RECSYS_SERVER_OBSERVE_LOG_FORMAT_H_
#define RECSYS_SERVER_OBSERVE_LOG_FORMAT_H_

// Log records as lines: JSON objects, or text for people (serve/log_format.py).
//
// Part of what is logged was given by clients. Whatever it holds, a record is one line of JSON, or
// begins one line of text: line breaks, control characters and what turns text around are escaped,
// and nothing is longer than its bound.

#include <cstddef>
#include <string>

#include "base/log.h"

namespace recsys {

inline constexpr std::size_t kMaxMessageChars = 8 << 10;
inline constexpr std::size_t kMaxFieldChars = 256;
inline constexpr std::size_t kMaxExceptionBytes = 32 << 10;

/// One JSON object, in ASCII: time (RFC 3339, UTC, microseconds), level, logger, message, fields,
/// exception. A line without its end.
std::string JsonLine(const LogRecord& record);

/// Time, level, logger, message, fields as name=value; an exception's lines follow, indented.
/// Without the last line's end.
std::string TextLine(const LogRecord& record);

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_LOG_FORMAT_H_
