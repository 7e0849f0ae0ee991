// Measures the cost of the engine's own port: a server on it that answers Predict with the same
// message, whatever the request; and test.Echo, for checks by other clients.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/echo_stream.h"
#include "bench/peers/until_stopped.h"
#include "port/rpc_server.h"
#include "recsys/error.h"

namespace {

using recsys::Bytes;
using recsys::Message;

// As long as an answer with one score of a small model.
constexpr std::size_t kAnswerBytes = 100;

recsys::Service MakePredict() {
  recsys::Service service;
  service.name = "recsys.v1.PredictionService";
  const Bytes answer = Bytes::Of(std::string(kAnswerBytes, '\0'));
  service.methods["Predict"].unary = [answer](std::shared_ptr<recsys::UnaryCall> call, Bytes) {
    Message message;
    message.parts.push_back(answer);
    call->Answer(std::move(message));
    return nullptr;
  };
  return service;
}

recsys::Service MakeEcho() {
  recsys::Service service;
  service.name = "test.Echo";
  service.methods["Echo"].unary = [](std::shared_ptr<recsys::UnaryCall> call, Bytes request) {
    Message message;
    message.parts.push_back(std::move(request));
    call->Answer(std::move(message));
    return nullptr;
  };
  service.methods["Fail"].unary = [](std::shared_ptr<recsys::UnaryCall> call, Bytes request) {
    call->Fail({recsys::StatusCode::kResourceExhausted, std::string(request.view), 17});
    return nullptr;
  };
  // Ended by the client or its deadline.
  service.methods["Hang"].unary = [](std::shared_ptr<recsys::UnaryCall>, Bytes) { return nullptr; };
  // Answers with the metadata, one line each.
  service.methods["Metadata"].unary = [](std::shared_ptr<recsys::UnaryCall> call, Bytes) {
    std::string text = call->peer() + "\n";
    for (const auto& [name, value] : call->AllMetadata()) text += name + "=" + value + "\n";
    call->Answer(Message::Of(std::move(text)));
    return nullptr;
  };
  service.methods["Stream"].stream = [](std::shared_ptr<recsys::StreamCall> call) {
    call->Read();
    return std::make_shared<recsys::EchoStream>(call);
  };
  return service;
}

int Usage() {
  std::fputs("usage: recsys-port-server [--port N] [--threads N]\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  recsys::RpcOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc || (name != "--port" && name != "--threads")) return Usage();
    (name == "--port" ? options.port : options.num_threads) = std::atoi(argv[i + 1]);
  }
  if (options.port < 0 || options.port > 65535 || options.num_threads < 1) return Usage();
  recsys::peers::HoldSignals();
  try {
    recsys::RpcServer server(options, {MakePredict(), MakeEcho()});
    recsys::peers::UntilStopped(server.port());
  } catch (const recsys::Error& error) {
    std::fprintf(stderr, "recsys-port-server: %s\n", error.what());
    return 1;
  }
  return 0;
}
