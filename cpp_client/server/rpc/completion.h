#ifndef RECSYS_SERVER_RPC_COMPLETION_H_
#define RECSYS_SERVER_RPC_COMPLETION_H_

#include <grpcpp/impl/codegen/completion_queue_tag.h>

namespace recsys {

/// What a completion queue gives back once an operation is done. It is a tag of gRPC's C++ queues,
/// though the operations are those of its C API: so both may use one queue.
class Completion : public grpc::internal::CompletionQueueTag {
 public:
  /// Called by the thread that polls the queue; must not throw. `ok` is false where the operation
  /// did not happen.
  virtual void Completed(bool ok) = 0;

  bool FinalizeResult(void** tag, bool* /*ok*/) final {
    *tag = this;
    return true;
  }

 protected:
  ~Completion() override = default;
};

/// A completion that calls a method of what it is a part of.
template <typename Owner, void (Owner::*kMethod)(bool)>
class CompletionOf final : public Completion {
 public:
  explicit CompletionOf(Owner* owner) : owner_(owner) {}
  void Completed(bool ok) override { (owner_->*kMethod)(ok); }

 private:
  Owner* owner_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_COMPLETION_H_
