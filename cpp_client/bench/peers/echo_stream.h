#ifndef RECSYS_BENCH_PEERS_ECHO_STREAM_H_
#define RECSYS_BENCH_PEERS_ECHO_STREAM_H_

#include <memory>
#include <utility>

#include "port/service.h"

namespace recsys {

/// Echoes each message, then reads the next; finishes with the client. For benchmarks, tests and
/// fuzzers of the port.
class EchoStream final : public StreamHandler {
 public:
  explicit EchoStream(std::shared_ptr<StreamCall> call) : call_(std::move(call)) {}
  void OnMessage(Bytes message) override {
    Message answer;
    answer.parts.push_back(std::move(message));
    call_->Write(std::move(answer), [call = call_](bool ok) {
      if (ok) call->Read();
    });
  }
  void OnHalfClose() override { call_->Finish({}); }
  void OnCancelled() override {}

 private:
  std::shared_ptr<StreamCall> call_;
};

}  // namespace recsys

#endif  // RECSYS_BENCH_PEERS_ECHO_STREAM_H_
