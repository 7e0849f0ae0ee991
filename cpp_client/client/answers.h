#ifndef RECSYS_CLIENT_ANSWERS_H_
#define RECSYS_CLIENT_ANSWERS_H_

// Parses a server's answers from protobuf's wire format; nothing in them is trusted.

#include <string>
#include <string_view>

#include "recsys/client.h"

namespace recsys::client {

/// One answer on a stream.
struct StreamAnswer {
  std::string request_id;
  ClientResult result;
};

/// Parses a PredictResponse. The error is kInternal if the bytes are malformed or an output does
/// not match its shape.
ClientResult ReadResponse(std::string_view bytes);

/// Parses a ModelMetadata. Throws ClientError (kInternal) if the bytes are malformed.
ModelMetadata ReadMetadata(std::string_view bytes);

/// Parses a StreamResponse. Throws ClientError (kInternal) if the bytes are malformed.
StreamAnswer ReadStreamAnswer(std::string_view bytes);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_ANSWERS_H_
