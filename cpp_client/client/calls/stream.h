#ifndef RECSYS_CLIENT_CALLS_STREAM_H_
#define RECSYS_CLIENT_CALLS_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "client/calls/cancellation.h"
#include "client/calls/engine.h"
#include "recsys/client.h"

namespace recsys {

/// An active stream: one read and one write at a time, as gRPC requires. Thread-safe.
struct ClientStream::State final : public client::Operation,
                                   public std::enable_shared_from_this<ClientStream::State> {
 public:
  State(client::Engine* engine, Client::StreamCallback callback);

  /// Starts the call; without a timeout it has no deadline.
  void Start(const CallOptions& options);
  void Send(const ClientRequest& request);
  /// Closes the sending side: no further requests.
  void Close();
  /// Waits until every request is answered; returns the error if the stream failed.
  std::optional<ClientError> WaitUntilEnded();
  void Cancel() override;

 private:
  /// A completion event; at most one of each kind is pending.
  class Step final : public client::Event {
   public:
    Step(State* state, void (State::*on)(bool)) : state_(state), on_(on) {}
    void Proceed(bool ok) override { state_->After(ok, on_); }

   private:
    State* state_;
    void (State::*on_)(bool);
  };

  void After(bool ok, void (State::*on)(bool));
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  /// The lock must be held, also for the three functions below.
  void WriteNext();
  void ReadNext();
  void FinishCall();
  void* Pending(Step* step);

  void Answer();
  void End();

  client::Engine* const engine_;
  const ClientOptions client_options_;
  const Client::StreamCallback callback_;
  CancellationLink link_;
  Step started_{this, &State::OnStarted};
  Step read_{this, &State::OnRead};
  Step written_{this, &State::OnWritten};
  Step finished_{this, &State::OnFinished};

  std::mutex mutex_;
  std::condition_variable has_ended_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer received_;
  grpc::Status status_;
  std::deque<grpc::ByteBuffer> unsent_;
  std::int64_t num_unsent_bytes_ = 0;
  std::unordered_set<std::string> unanswered_;
  int num_pending_ = 0;
  bool is_started_ = false;
  bool is_writing_ = false;
  bool is_closed_ = false;
  bool is_half_closed_ = false;
  bool is_finishing_ = false;
  bool is_cancelled_ = false;
  /// First no further requests are accepted; then all callbacks have run.
  bool is_over_ = false;
  bool is_ended_ = false;
  /// Set if an answer was malformed.
  std::optional<ClientError> damage_;
  std::optional<ClientError> error_;
};

}  // namespace recsys

#endif  // RECSYS_CLIENT_CALLS_STREAM_H_
