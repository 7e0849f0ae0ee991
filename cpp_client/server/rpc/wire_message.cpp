#include "server/rpc/wire_message.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>

#include <cstring>
#include <utility>
#include <vector>

namespace recsys {
namespace {

// Below, one copy costs less than a slice with an owner.
constexpr std::size_t kMaxCopiedBytes = 4096;
constexpr char kPushback[] = "grpc-retry-pushback-ms";

void DropOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

grpc_slice Shared(Bytes part) {
  auto owner = std::make_unique<std::shared_ptr<const void>>(std::move(part.owner));
  // gRPC never writes into what it sends.
  void* data = const_cast<char*>(part.view.data());
  return grpc_slice_new_with_user_data(data, part.view.size(), DropOwner, owner.release());
}

grpc_slice Copied(const std::vector<Bytes>& parts, std::size_t num_bytes) {
  grpc_slice slice = grpc_slice_malloc(num_bytes);
  auto* to = GRPC_SLICE_START_PTR(slice);
  for (const Bytes& part : parts) {
    if (part.view.empty()) continue;
    std::memcpy(to, part.view.data(), part.view.size());
    to += part.view.size();
  }
  return slice;
}

// The only slice of a message; none where there are more, or it has to be inflated first.
const grpc_slice* OnlySlice(const grpc_byte_buffer& buffer) {
  if (buffer.type != GRPC_BB_RAW || buffer.data.raw.compression != GRPC_COMPRESS_NONE)
    return nullptr;
  const grpc_slice_buffer& slices = buffer.data.raw.slice_buffer;
  return slices.count == 1 ? &slices.slices[0] : nullptr;
}

std::size_t Join(grpc_byte_buffer* buffer, std::unique_ptr<char[]>* joined) {
  const std::size_t num_bytes = grpc_byte_buffer_length(buffer);
  joined->reset(new char[num_bytes]);
  grpc_byte_buffer_reader reader;
  if (grpc_byte_buffer_reader_init(&reader, buffer) == 0) return 0;
  std::size_t at = 0;
  grpc_slice* slice = nullptr;
  while (grpc_byte_buffer_reader_peek(&reader, &slice) != 0) {
    const std::string_view view = ViewOf(*slice);
    if (view.size() > num_bytes - at) break;
    std::memcpy(joined->get() + at, view.data(), view.size());
    at += view.size();
  }
  grpc_byte_buffer_reader_destroy(&reader);
  return at;
}

}  // namespace

Bytes ReceivedMessage::TakeInto(const std::shared_ptr<const void>& owner) {
  if (const grpc_slice* slice = OnlySlice(*raw_)) return {ViewOf(*slice), owner};
  const std::size_t num_bytes = Join(raw_, &joined_);
  ByteBufferPtr{std::exchange(raw_, nullptr)};
  return {std::string_view(joined_.get(), num_bytes), owner};
}

Bytes ReceivedMessage::Take() {
  auto owner = std::make_shared<ReceivedMessage>();
  owner->raw_ = std::exchange(raw_, nullptr);
  return owner->TakeInto(owner);
}

ByteBufferPtr ToByteBuffer(Message message) {
  const std::size_t num_bytes = message.num_bytes();
  std::vector<grpc_slice> slices;
  if (num_bytes <= kMaxCopiedBytes) {
    slices.push_back(Copied(message.parts, num_bytes));
  } else {
    slices.reserve(message.parts.size());
    for (Bytes& part : message.parts) {
      if (!part.view.empty()) slices.push_back(Shared(std::move(part)));
    }
  }
  ByteBufferPtr buffer(grpc_raw_byte_buffer_create(slices.data(), slices.size()));
  for (const grpc_slice& slice : slices) grpc_slice_unref(slice);
  return buffer;
}

SendBatch::~SendBatch() {
  grpc_slice_unref(text_);
  if (retry_.value.refcount != nullptr) grpc_slice_unref(retry_.value);
}

grpc_op& SendBatch::Next(grpc_op_type type) {
  grpc_op& op = ops_[num_ops_++];
  op.op = type;
  return op;
}

void SendBatch::AddInitialMetadata() { Next(GRPC_OP_SEND_INITIAL_METADATA); }

void SendBatch::AddMessage(grpc_byte_buffer* message) {
  Next(GRPC_OP_SEND_MESSAGE).data.send_message.send_message = message;
}

void SendBatch::AddStatus(const Status& status) {
  auto& end = Next(GRPC_OP_SEND_STATUS_FROM_SERVER).data.send_status_from_server;
  end.status = static_cast<grpc_status_code>(status.code);
  if (!status.text.empty()) {
    text_ = grpc_slice_from_copied_buffer(status.text.data(), status.text.size());
    end.status_details = &text_;
  }
  if (status.retry_after_ms > 0) {
    const std::string number = std::to_string(status.retry_after_ms);
    retry_.key = grpc_slice_from_static_string(kPushback);
    retry_.value = grpc_slice_from_copied_buffer(number.data(), number.size());
    end.trailing_metadata = &retry_;
    end.trailing_metadata_count = 1;
  }
}

void SendBatch::Start(grpc_call* call, void* tag) {
  const grpc_call_error error = grpc_call_start_batch(call, ops_, num_ops_, tag, nullptr);
  // Only a fault of ours, such as two of one kind at the same time; the call would never end.
  GPR_ASSERT(error == GRPC_CALL_OK);
}

}  // namespace recsys
