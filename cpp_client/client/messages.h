#ifndef RECSYS_CLIENT_MESSAGES_H_
#define RECSYS_CLIENT_MESSAGES_H_

// Between the client's types and the wire's.

#include <grpcpp/support/byte_buffer.h>

#include "client/answers.h"
#include "client/calls/unary_call.h"
#include "recsys/client.h"

namespace recsys::client {

inline constexpr char kPredict[] = "/recsys.v1.PredictionService/Predict";
inline constexpr char kPredictStream[] = "/recsys.v1.PredictionService/PredictStream";
inline constexpr char kGetModelMetadata[] = "/recsys.v1.PredictionService/GetModelMetadata";

/// A request with what all requests of the client carry; one copy.
grpc::ByteBuffer BytesOf(const ClientRequest& request, const ClientOptions& options);

/// Asks for the client's model.
grpc::ByteBuffer MetadataRequest(const ClientOptions& options);

/// The answer, or the error that the call ended with.
ClientResult ResultOf(CallEnd end);

/// The same of GetModelMetadata; throws ClientError.
ModelMetadata MetadataOf(CallEnd end);

/// Throws ClientError (kInternal): the bytes are no such message.
StreamAnswer StreamAnswerOf(grpc::ByteBuffer* bytes);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_MESSAGES_H_
