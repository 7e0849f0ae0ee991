#include "server/protocols/messages.h"

#include <exception>
#include <memory>
#include <utility>

#include "base/log.h"

namespace recsys {

Error NoMessage(std::string_view message, std::string_view kind) {
  return Error(ErrorKind::kRequest, "message: got " + std::to_string(message.size()) +
                                        " bytes that are not a " + std::string(kind));
}

Method MessageMethod(std::string service, std::function<std::string(std::string_view)> answer) {
  Method method;
  method.unary = [service = std::move(service), answer = std::move(answer)](
                     const std::shared_ptr<UnaryCall>& call,
                     const Bytes& message) -> std::shared_ptr<UnaryHandler> {
    try {
      call->Answer(Message::Of(answer(message.view)));
    } catch (const std::exception& error) {
      const Status status = StatusOf(error);
      if (status.code == StatusCode::kInternal) {
        LogRecord record;
        record.level = LogLevel::kError;
        record.message = "a call of " + service + " failed";
        record.exception = error.what();
        Log(std::move(record));
      }
      call->Fail(status);
    }
    return nullptr;
  };
  return method;
}

}  // namespace recsys
