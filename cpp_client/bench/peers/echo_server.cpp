// Measures the cost of gRPC itself: a completion-queue server that answers any unary call with the
// same message, whatever the request. It does no other work, so no model server on gRPC can be
// faster.

#include <absl/synchronization/mutex.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/peers/until_stopped.h"

namespace {

// As long as an answer with one score of a small model.
constexpr std::size_t kAnswerBytes = 100;
// Calls ready to be accepted, per thread.
constexpr int kCalls = 256;

/// One call: accepted, read, answered; then waits for the next.
class Call {
 public:
  Call(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue,
       const grpc::ByteBuffer* answer, const std::atomic<bool>* is_stopping)
      : service_(service), queue_(queue), answer_(answer), is_stopping_(is_stopping) {
    Wait();
  }

  /// If a client has disconnected, or the server stops (ok is false), the call is over.
  void Proceed(bool ok) {
    if (!ok) return Wait();
    switch (state_) {
      case State::kWaiting:
        state_ = State::kReading;
        stream_->Read(&request_, this);
        return;
      case State::kReading:
        state_ = State::kAnswering;
        stream_->WriteAndFinish(*answer_, grpc::WriteOptions(), grpc::Status::OK, this);
        return;
      case State::kAnswering:
        Wait();
        return;
    }
  }

 private:
  enum class State { kWaiting, kReading, kAnswering };

  void Wait() {
    if (*is_stopping_) return;
    state_ = State::kWaiting;
    request_.Clear();
    stream_.reset();
    context_ = std::make_unique<grpc::GenericServerContext>();
    stream_ = std::make_unique<grpc::GenericServerAsyncReaderWriter>(context_.get());
    service_->RequestCall(context_.get(), stream_.get(), queue_, queue_, this);
  }

  grpc::AsyncGenericService* const service_;
  grpc::ServerCompletionQueue* const queue_;
  const grpc::ByteBuffer* const answer_;
  const std::atomic<bool>* const is_stopping_;
  State state_ = State::kWaiting;
  std::unique_ptr<grpc::GenericServerContext> context_;
  std::unique_ptr<grpc::GenericServerAsyncReaderWriter> stream_;
  grpc::ByteBuffer request_;
};

void Run(grpc::ServerCompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

int Usage() {
  std::fputs("usage: recsys-echo-server [--port N] [--threads N]\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  int port = 0, num_threads = 1;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc || (name != "--port" && name != "--threads")) return Usage();
    (name == "--port" ? port : num_threads) = std::atoi(argv[i + 1]);
  }
  if (port < 0 || port > 65535 || num_threads < 1) return Usage();
  recsys::peers::HoldSignals();
  // Debian's gRPC checks for deadlocks whenever it takes a lock: exclude that from the baseline.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  const grpc::Slice slice(std::string(kAnswerBytes, '\0'));
  const grpc::ByteBuffer answer(&slice, 1);
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterAsyncGenericService(&service);
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  for (int i = 0; i < num_threads; ++i) queues.push_back(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fputs("recsys-echo-server: the port cannot be had\n", stderr);
    return 1;
  }
  std::atomic<bool> is_stopping{false};
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::thread> threads;
  for (const auto& queue : queues) {
    for (int i = 0; i < kCalls; ++i) {
      calls.push_back(std::make_unique<Call>(&service, queue.get(), &answer, &is_stopping));
    }
    threads.emplace_back([waiting = queue.get()] { Run(waiting); });
  }
  recsys::peers::UntilStopped(port);
  is_stopping = true;
  server->Shutdown(std::chrono::system_clock::now());
  for (const auto& queue : queues) queue->Shutdown();
  for (std::thread& thread : threads) thread.join();
  return 0;
}
