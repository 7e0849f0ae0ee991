#ifndef RECSYS_SERVER_RPC_CALL_INFO_H_
#define RECSYS_SERVER_RPC_CALL_INFO_H_

#include <grpc/grpc.h>

#include <mutex>
#include <string>
#include <string_view>

namespace recsys {

/// gRPC's side of one call: its handle, and what came with its opening. What is read of it may be
/// read from any thread, also after the call is over.
class CallInfo {
 public:
  CallInfo() { grpc_metadata_array_init(&metadata_); }
  CallInfo(const CallInfo&) = delete;
  CallInfo& operator=(const CallInfo&) = delete;
  ~CallInfo();

  /// Where gRPC puts them when the call comes.
  grpc_call** call_slot() { return &call_; }
  gpr_timespec* deadline_slot() { return &deadline_; }
  grpc_metadata_array* metadata_slot() { return &metadata_; }
  /// To be called once gRPC has filled them: keeps the metadata for as long as this lives.
  void Opened();
  /// Whether gRPC has filled them.
  bool is_open() const { return is_open_; }

  /// Valid until Release.
  grpc_call* call() const { return call_; }
  /// Starts to listen for the call's end: `tag` comes back once it has ended, in whatever way.
  /// `cancelled` is set then.
  void AwaitClose(int* cancelled, void* tag);
  /// Gives the handle back: no operation is under way, and none will be started.
  void Release();

  std::string_view Metadata(std::string_view key) const;
  int Count(std::string_view key) const;
  double deadline_s() const;
  std::string peer() const;

 private:
  grpc_call* call_ = nullptr;
  gpr_timespec deadline_ = gpr_timespec();
  grpc_metadata_array metadata_;
  bool is_open_ = false;
  /// Keeps the handle while somebody asks it for the peer.
  mutable std::mutex mutex_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_CALL_INFO_H_
