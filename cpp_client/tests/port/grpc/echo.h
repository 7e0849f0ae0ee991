#ifndef RECSYS_TESTS_PORT_GRPC_ECHO_H_
#define RECSYS_TESTS_PORT_GRPC_ECHO_H_

// A port with methods that answer what they are sent, and a client for it.

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cmath>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "port/rpc_server.h"
#include "tests/port/echo_method.h"

namespace recsys {

/// Long enough for the slowest machine; nothing waits for its end.
constexpr double kPatienceS = 60;

/// Things that one thread gives and another waits for.
template <typename T>
class Mailbox {
 public:
  void Put(T thing) {
    const std::lock_guard<std::mutex> lock(mutex_);
    things_.push_back(std::move(thing));
    came_.notify_one();
  }
  /// None where nothing came in time.
  std::optional<T> Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto limit = std::chrono::duration<double>(kPatienceS);
    if (!came_.wait_for(lock, limit, [this] { return !things_.empty(); })) return std::nullopt;
    T thing = std::move(things_.front());
    things_.pop_front();
    return thing;
  }
  std::size_t size() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return things_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<T> things_;
};

/// Tells a mailbox of cancellation.
class TellCancelled final : public UnaryHandler {
 public:
  explicit TellCancelled(Mailbox<int>* cancelled) : cancelled_(cancelled) {}
  void Cancelled() override { cancelled_->Put(1); }

 private:
  Mailbox<int>* cancelled_;
};

/// A call that a test answers itself, and its request.
struct HeldCall {
  std::shared_ptr<UnaryCall> call;
  Bytes request;
};

/// test.Echo: Echo answers at once; Hold gives the call to `held`; Stream is what the test makes of
/// it.
struct EchoService {
  Mailbox<HeldCall> held;
  Mailbox<int> cancelled;
  std::function<std::shared_ptr<StreamHandler>(std::shared_ptr<StreamCall>)> stream;

  Service Made();
};

inline Service EchoService::Made() {
  Service service = ServiceWithEcho();
  service.methods["Hold"].unary = [this](std::shared_ptr<UnaryCall> call, Bytes request) {
    held.Put({std::move(call), std::move(request)});
    return std::make_shared<TellCancelled>(&cancelled);
  };
  service.methods["Throw"].unary = [](std::shared_ptr<UnaryCall>,
                                      Bytes) -> std::shared_ptr<UnaryHandler> {
    throw std::runtime_error("secret");
  };
  if (stream) service.methods["Stream"].stream = stream;
  return service;
}

inline std::shared_ptr<grpc::Channel> ChannelTo(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.use_local_subchannel_pool", 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials(), arguments);
}

/// A slice of a text, as a message.
inline grpc::ByteBuffer BufferOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

inline std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

/// The queue of all calls of a test. A thread polls it, so that clients read also while the test
/// waits for something else.
class ClientQueue {
 public:
  static grpc::CompletionQueue* Get() {
    static ClientQueue queue;
    return &queue.queue_;
  }
  /// What a call waits for.
  class Event {
   public:
    void Set() {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_set_ = true;
      set_.notify_all();
    }
    void Wait() {
      std::unique_lock<std::mutex> lock(mutex_);
      set_.wait(lock, [this] { return is_set_; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable set_;
    bool is_set_ = false;
  };

 private:
  ClientQueue() : thread_([this] { Poll(); }) {}
  ~ClientQueue() {
    queue_.Shutdown();
    thread_.join();
  }
  void Poll() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) static_cast<Event*>(tag)->Set();
  }

  grpc::CompletionQueue queue_;
  std::thread thread_;
};

/// One call that is under way.
class ClientCall {
 public:
  ClientCall(std::shared_ptr<grpc::Channel> channel, const std::string& method,
             const std::string& request, const std::map<std::string, std::string>& metadata = {},
             double timeout_s = kPatienceS)
      : stub_(std::move(channel)) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    if (std::isfinite(timeout_s)) {
      const auto limit = std::chrono::microseconds(static_cast<std::int64_t>(timeout_s * 1e6));
      context_.set_deadline(std::chrono::system_clock::now() + limit);
    }
    reader_ = stub_.PrepareUnaryCall(&context_, method, BufferOf(request), ClientQueue::Get());
    reader_->StartCall();
    reader_->Finish(&answer_, &status_, &done_);
  }
  ~ClientCall() {
    context_.TryCancel();
    Wait();
  }
  grpc::ClientContext& context() { return context_; }
  const grpc::Status& Wait() {
    done_.Wait();
    return status_;
  }
  std::string Text() {
    Wait();
    return TextOf(answer_);
  }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer answer_;
  grpc::Status status_;
  ClientQueue::Event done_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_PORT_GRPC_ECHO_H_
