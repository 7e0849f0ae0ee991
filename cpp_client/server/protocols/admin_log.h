#ifndef RECSYS_SERVER_PROTOCOLS_ADMIN_LOG_H_
#define RECSYS_SERVER_PROTOCOLS_ADMIN_LOG_H_

#include <google/protobuf/message.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "server/rpc/service.h"

namespace recsys {

/// A line of the logger serve.admin.
void LogAdmin(LogLevel level, std::string message);

/// The same method, whose calls are lines of the log: what was asked, from where, and how it ended.
/// `name`: of the method; `kind`: an empty message of the type that it takes.
Method LoggedMethod(std::string name, std::shared_ptr<const google::protobuf::Message> kind,
                    Method method);

/// A message on one line, as Python's text_format writes it, cut to a length that a log can have;
/// what is not printable in it is escaped.
std::string OneLine(const google::protobuf::Message& kind, std::string_view data);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_ADMIN_LOG_H_
