// Fuzzes a client's bytes on a connection of the port, from the socket to handlers and back.
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "bench/peers/echo_stream.h"
#include "port/connection/connection.h"
#include "port/polling/loops.h"

namespace {

using recsys::Bytes;
using recsys::Message;

/// A polling thread without a port: connections are passed to it directly.
struct Polled {
  Polled() : state(Limits()), loops(1, nullptr) {
    state.methods["/a/U"].unary = [](std::shared_ptr<recsys::UnaryCall> call, Bytes request) {
      Message answer;
      answer.parts.push_back(std::move(request));
      call->Answer(std::move(answer));
      return nullptr;
    };
    state.methods["/a/H"].unary = [](std::shared_ptr<recsys::UnaryCall>, Bytes) { return nullptr; };
    state.methods["/a/S"].stream = [](std::shared_ptr<recsys::StreamCall> call) {
      call->Read();
      return std::make_shared<recsys::EchoStream>(call);
    };
  }
  static recsys::ConnectionLimits Limits() {
    recsys::ConnectionLimits limits;
    limits.max_message_bytes = 1 << 16;
    limits.max_connection_bytes = 1 << 18;
    return limits;
  }
  recsys::http2::RpcPortState state;
  recsys::http2::Loops loops;
};

constexpr char kHello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static Polled polled;
  int files[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, files) != 0) std::abort();
  const recsys::FileHandle client(files[0]);
  // The first byte decides whether the client begins with a valid preface.
  std::string data(reinterpret_cast<const char*>(bytes), size);
  if (!data.empty() && (data[0] & 1) == 0)
    data = std::string(kHello, sizeof kHello) + data.substr(1);
  if (send(client.number(), data.data(), data.size(), MSG_NOSIGNAL) < 0 && !data.empty()) return 0;
  shutdown(client.number(), SHUT_WR);
  polled.loops.Adopt(recsys::FileHandle(files[1]), &polled.state);
  // The connection must end too, and hold no memory.
  while (polled.state.num_connections != 0) {
    char answer[4096];
    while (recv(client.number(), answer, sizeof answer, 0) > 0) {
    }
    usleep(10);
  }
  if (!polled.state.open_calls.WaitUntilNone(0)) std::abort();
  if (polled.state.counters.held_bytes != 0) std::abort();
  return 0;
}
