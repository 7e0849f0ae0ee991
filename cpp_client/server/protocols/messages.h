#ifndef RECSYS_SERVER_PROTOCOLS_MESSAGES_H_
#define RECSYS_SERVER_PROTOCOLS_MESSAGES_H_

#include <functional>
#include <string>
#include <string_view>

#include "recsys/error.h"
#include "server/rpc/service.h"

namespace recsys {

/// The error of bytes that are no such message, such as "PredictRequest".
Error NoMessage(std::string_view message, std::string_view kind);

/// A method that answers a message with a message, at once: `answer` takes and gives serialized
/// ones. What it throws ends the call with its status; a fault of ours stands in the log as one of
/// `service`.
Method MessageMethod(std::string service, std::function<std::string(std::string_view)> answer);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_MESSAGES_H_
