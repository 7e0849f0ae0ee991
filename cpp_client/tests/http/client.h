#ifndef RECSYS_TESTS_HTTP_CLIENT_H_
#define RECSYS_TESTS_HTTP_CLIENT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace recsys {

/// An answer as it came over the wire.
struct Reply {
  int status = 0;
  std::string head;
  std::string body;

  bool Has(const std::string& header) const {
    return head.find("\r\n" + header + "\r\n") != head.npos;
  }
};

/// A connection to a port of this machine, blocking.
class Client {
 public:
  explicit Client(int port) : file_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ =
        connect(file_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { close(file_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool is_connected() const { return is_connected_; }

  void Send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t sent = send(file_, data.data(), data.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      data.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  void EndSending() { shutdown(file_, SHUT_WR); }

  /// One answer, with a body as long as it says; a status of 0 where the server has closed instead.
  Reply Receive(bool has_body = true) {
    Reply reply;
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == buffer_.npos) {
      if (!ReceiveMore()) return reply;
    }
    reply.head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    reply.status = std::atoi(reply.head.c_str() + 9);
    const std::size_t length = reply.head.find("Content-Length: ");
    if (!has_body || length == reply.head.npos) return reply;
    const auto size = static_cast<std::size_t>(std::atoll(reply.head.c_str() + length + 16));
    while (buffer_.size() < size && ReceiveMore()) {
    }
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return reply;
  }
  Reply Ask(std::string_view data) {
    Send(data);
    return Receive();
  }
  /// Whether the server has closed it, with nothing more to read; waits for that.
  bool IsClosed() { return buffer_.empty() && !ReceiveMore(); }

 private:
  bool ReceiveMore() {
    char data[65536];
    const ssize_t got = recv(file_, data, sizeof(data), 0);
    if (got <= 0) return false;
    buffer_.append(data, static_cast<std::size_t>(got));
    return true;
  }

  int file_;
  bool is_connected_ = false;
  std::string buffer_;
};

inline std::string Get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
}

inline std::string Post(const std::string& path, const std::string& body,
                        const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + headers + "\r\n" + body;
}

}  // namespace recsys

#endif  // RECSYS_TESTS_HTTP_CLIENT_H_
