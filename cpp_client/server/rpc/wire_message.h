#ifndef RECSYS_SERVER_RPC_WIRE_MESSAGE_H_
#define RECSYS_SERVER_RPC_WIRE_MESSAGE_H_

#include <grpc/grpc.h>

#include <memory>
#include <string>

#include "base/bytes.h"
#include "server/core/status.h"

namespace recsys {

struct FreeByteBuffer {
  void operator()(grpc_byte_buffer* buffer) const { grpc_byte_buffer_destroy(buffer); }
};
/// A message as gRPC holds it: some slices.
using ByteBufferPtr = std::unique_ptr<grpc_byte_buffer, FreeByteBuffer>;

/// A message that came, in one piece: without a copy where it is one slice, else joined. Not
/// thread-safe.
class ReceivedMessage {
 public:
  /// Where gRPC puts it: empty before.
  grpc_byte_buffer** slot() { return &raw_; }
  bool has_value() const { return raw_ != nullptr; }
  ReceivedMessage() = default;
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;
  ~ReceivedMessage() { ByteBufferPtr{raw_}; }

  /// The bytes, kept by `owner`, which this is a part of and has to live as long as it. To be
  /// called once, where there is a value.
  Bytes TakeInto(const std::shared_ptr<const void>& owner);
  /// The same with an owner of its own; another message may come into the slot then.
  Bytes Take();

 private:
  grpc_byte_buffer* raw_ = nullptr;
  std::unique_ptr<char[]> joined_;
};

/// A message to be sent: small ones copied into one slice, large parts as slices that hold their
/// owners.
ByteBufferPtr ToByteBuffer(Message message);

/// The operations of one batch that sends: initial metadata, a message, the end of a call. Lives on
/// the stack; what the operations point at has to live until they are started (messages: until they
/// are done).
class SendBatch {
 public:
  SendBatch() = default;
  SendBatch(const SendBatch&) = delete;
  SendBatch& operator=(const SendBatch&) = delete;
  ~SendBatch();

  void AddInitialMetadata();
  void AddMessage(grpc_byte_buffer* message);
  void AddStatus(const Status& status);
  /// Gives the batch to gRPC. Sending batches of one call are started one after the other.
  void Start(grpc_call* call, void* tag);

 private:
  grpc_op& Next(grpc_op_type type);

  grpc_op ops_[3] = {};
  std::size_t num_ops_ = 0;
  grpc_slice text_ = grpc_empty_slice();
  grpc_metadata retry_ = {};
};

/// The view of a slice, which has to live as long.
inline std::string_view ViewOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_WIRE_MESSAGE_H_
