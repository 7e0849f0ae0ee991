#ifndef RECSYS_CLIENT_ANSWERS_H_
#define RECSYS_CLIENT_ANSWERS_H_

// Reads a server's answers from protobuf's wire; nothing in them is trusted.

#include <string>
#include <string_view>

#include "recsys/client.h"

namespace recsys::client {

/// One answer of a stream.
struct StreamAnswer {
  std::string request_id;
  ClientResult result;
};

/// From a PredictResponse. Its error is kInternal where the bytes are no such message or an output
/// does not fit its shape.
ClientResult ReadResponse(std::string_view bytes);

/// From a ModelMetadata. Throws ClientError (kInternal): the bytes are no such message.
ModelMetadata ReadMetadata(std::string_view bytes);

/// From a StreamResponse. Throws ClientError (kInternal): the bytes are no such message.
StreamAnswer ReadStreamAnswer(std::string_view bytes);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_ANSWERS_H_
