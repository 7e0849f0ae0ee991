#include "server/rpc/call_info.h"

#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include <limits>
#include <memory>

#include "server/rpc/wire_message.h"

namespace recsys {
namespace {

constexpr double kSecondsOfNanosecond = 1e-9;

}  // namespace

CallInfo::~CallInfo() {
  if (is_open_) {
    for (std::size_t i = 0; i < metadata_.count; ++i) {
      grpc_slice_unref(metadata_.metadata[i].key);
      grpc_slice_unref(metadata_.metadata[i].value);
    }
  }
  grpc_metadata_array_destroy(&metadata_);
}

void CallInfo::Opened() {
  is_open_ = true;
  // The slices are the call's, which may be over before those who look at them know it.
  for (std::size_t i = 0; i < metadata_.count; ++i) {
    grpc_slice_ref(metadata_.metadata[i].key);
    grpc_slice_ref(metadata_.metadata[i].value);
  }
}

void CallInfo::AwaitClose(int* cancelled, void* tag) {
  grpc_op op = {};
  op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
  op.data.recv_close_on_server.cancelled = cancelled;
  const grpc_call_error error = grpc_call_start_batch(call_, &op, 1, tag, nullptr);
  GPR_ASSERT(error == GRPC_CALL_OK);
}

void CallInfo::Release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call_ != nullptr) grpc_call_unref(call_);
  call_ = nullptr;
}

std::string_view CallInfo::Metadata(std::string_view key) const {
  for (std::size_t i = 0; i < metadata_.count; ++i) {
    if (ViewOf(metadata_.metadata[i].key) == key) return ViewOf(metadata_.metadata[i].value);
  }
  return {};
}

int CallInfo::Count(std::string_view key) const {
  int count = 0;
  for (std::size_t i = 0; i < metadata_.count; ++i)
    count += ViewOf(metadata_.metadata[i].key) == key;
  return count;
}

double CallInfo::deadline_s() const {
  // Both clocks of gRPC's that a deadline may be on; its monotonic one is the system's.
  const gpr_timespec found = gpr_convert_clock_type(deadline_, GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(found, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0) {
    return std::numeric_limits<double>::infinity();
  }
  return static_cast<double>(found.tv_sec) + kSecondsOfNanosecond * found.tv_nsec;
}

std::string CallInfo::peer() const {
  struct Free {
    void operator()(char* text) const { gpr_free(text); }
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call_ == nullptr) return {};
  const std::unique_ptr<char, Free> text(grpc_call_get_peer(call_));
  return text == nullptr ? std::string() : std::string(text.get());
}

}  // namespace recsys
