#include "server/http/http_stream.h"

#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace recsys {

HttpStream::HttpStream(FileHandle file, const std::shared_ptr<SSL_CTX>& tls)
    : file_(std::move(file)) {
  if (tls == nullptr) return;
  tls_.reset(SSL_new(tls.get()));
  if (tls_ == nullptr || SSL_set_fd(tls_.get(), file_.number()) != 1) {
    // What begins no handshake ends at its first step.
    file_.Close();
    return;
  }
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_set_accept_state(tls_.get());
}

HttpStream::Result HttpStream::Begin() {
  if (!file_.is_open()) return Result::kEnd;
  if (tls_ == nullptr) return Result::kOk;
  ERR_clear_error();
  return ResultOf(SSL_do_handshake(tls_.get()));
}

HttpStream::Result HttpStream::ResultOf(int returned) {
  if (returned > 0) return Result::kOk;
  const int error = SSL_get_error(tls_.get(), returned);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) return Result::kWantsRead;
  if (error == SSL_ERROR_WANT_WRITE) return Result::kWantsWrite;
  return Result::kEnd;
}

HttpStream::Result HttpStream::Read(char* data, std::size_t size, std::size_t* num_bytes) {
  *num_bytes = 0;
  if (tls_ != nullptr) {
    ERR_clear_error();
    return ResultOf(SSL_read_ex(tls_.get(), data, size, num_bytes));
  }
  for (;;) {
    const ssize_t got = recv(file_.number(), data, size, 0);
    if (got > 0) {
      *num_bytes = static_cast<std::size_t>(got);
      return Result::kOk;
    }
    if (got < 0 && errno == EINTR) continue;
    const bool is_empty = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return is_empty ? Result::kWantsRead : Result::kEnd;
  }
}

HttpStream::Result HttpStream::Write(std::string_view data, std::size_t* num_bytes) {
  *num_bytes = 0;
  if (data.empty()) return Result::kOk;
  if (tls_ != nullptr) {
    ERR_clear_error();
    return ResultOf(SSL_write_ex(tls_.get(), data.data(), data.size(), num_bytes));
  }
  for (;;) {
    const ssize_t sent = send(file_.number(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      *num_bytes = static_cast<std::size_t>(sent);
      return Result::kOk;
    }
    if (errno == EINTR) continue;
    const bool is_full = errno == EAGAIN || errno == EWOULDBLOCK;
    return is_full ? Result::kWantsWrite : Result::kEnd;
  }
}

void HttpStream::EndWriting() {
  if (tls_ != nullptr) {
    ERR_clear_error();
    SSL_shutdown(tls_.get());
    ERR_clear_error();
  }
  shutdown(file_.number(), SHUT_WR);
}

}  // namespace recsys
