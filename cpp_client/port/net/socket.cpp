#include "port/net/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace recsys::http2 {
namespace {

int SizeForSsl(std::size_t size) {
  return static_cast<int>(
      std::min<std::size_t>(size, static_cast<std::size_t>(std::numeric_limits<int>::max())));
}

}  // namespace

Socket::Socket(FileHandle file, SSL_CTX* context) : file_(std::move(file)) {
  if (context == nullptr) return;
  ssl_.reset(SSL_new(context));
  if (ssl_ != nullptr) {
    SSL_set_fd(ssl_.get(), file_.number());
    SSL_set_accept_state(ssl_.get());
  } else {
    file_.Close();
  }
}

IoResult Socket::ResultOf(int returned) {
  const int error = SSL_get_error(ssl_.get(), returned);
  ERR_clear_error();
  const bool is_blocked = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
  return is_blocked ? IoResult::kBlocked : IoResult::kClosed;
}

IoResult Socket::Handshake() {
  if (ssl_ == nullptr) return IoResult::kDone;
  ERR_clear_error();
  const int returned = SSL_do_handshake(ssl_.get());
  if (returned != 1) return ResultOf(returned);
  // A client that does not offer HTTP/2 speaks another protocol.
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &protocol, &size);
  return size == 0 ? IoResult::kClosed : IoResult::kDone;
}

IoResult Socket::Read(char* data, std::size_t size, std::size_t* num_read) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const int returned = SSL_read(ssl_.get(), data, SizeForSsl(size));
    if (returned <= 0) return ResultOf(returned);
    *num_read = static_cast<std::size_t>(returned);
    return IoResult::kDone;
  }
  const ssize_t returned = recv(file_.number(), data, size, 0);
  if (returned > 0) {
    *num_read = static_cast<std::size_t>(returned);
    return IoResult::kDone;
  }
  const bool is_blocked =
      returned < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return is_blocked ? IoResult::kBlocked : IoResult::kClosed;
}

IoResult Socket::Write(std::string_view data, std::size_t* num_written) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    const int returned = SSL_write(ssl_.get(), data.data(), SizeForSsl(data.size()));
    if (returned <= 0) return ResultOf(returned);
    *num_written = static_cast<std::size_t>(returned);
    return IoResult::kDone;
  }
  const ssize_t returned = send(file_.number(), data.data(), data.size(), MSG_NOSIGNAL);
  if (returned >= 0) {
    *num_written = static_cast<std::size_t>(returned);
    return IoResult::kDone;
  }
  const bool is_blocked = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return is_blocked ? IoResult::kBlocked : IoResult::kClosed;
}

void Socket::EndWriting() {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
  }
  shutdown(file_.number(), SHUT_WR);
}

std::string PeerOf(int file) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getpeername(file, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    sockaddr_in found = {};
    std::memcpy(&found, &address, sizeof found);
    inet_ntop(AF_INET, &found.sin_addr, text, sizeof text);
    return "ipv4:" + std::string(text) + ":" + std::to_string(ntohs(found.sin_port));
  }
  if (address.ss_family == AF_UNIX) return "unix:";
  if (address.ss_family != AF_INET6) return {};
  sockaddr_in6 found = {};
  std::memcpy(&found, &address, sizeof found);
  const std::string port = std::to_string(ntohs(found.sin6_port));
  if (IN6_IS_ADDR_V4MAPPED(&found.sin6_addr)) {
    inet_ntop(AF_INET, found.sin6_addr.s6_addr + 12, text, sizeof text);
    return "ipv4:" + std::string(text) + ":" + port;
  }
  inet_ntop(AF_INET6, &found.sin6_addr, text, sizeof text);
  return "ipv6:%5B" + std::string(text) + "%5D:" + port;
}

}  // namespace recsys::http2
