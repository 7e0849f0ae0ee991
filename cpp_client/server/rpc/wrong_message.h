#ifndef RECSYS_SERVER_RPC_WRONG_MESSAGE_H_
#define RECSYS_SERVER_RPC_WRONG_MESSAGE_H_

#include <google/protobuf/message_lite.h>

#include <limits>

#include "base/bytes.h"
#include "server/core/status.h"

namespace recsys {

/// Whether the bytes are a message, which is read into `message` then.
inline bool ParseMessage(const Bytes& data, google::protobuf::MessageLite* message) {
  if (data.view.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) return false;
  return message->ParseFromArray(data.view.data(), static_cast<int>(data.view.size()));
}

/// What gRPC itself says in Python where the bytes of a request are no message.
inline Status WrongMessage() {
  return {StatusCode::kInternal, "Exception deserializing request!", 0};
}

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_WRONG_MESSAGE_H_
