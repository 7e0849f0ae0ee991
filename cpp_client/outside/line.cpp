#include "outside/line.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace recsys {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;

bool IsForLater(int number) {
  return number == EAGAIN || number == EWOULDBLOCK || number == EINTR || number == ENOTCONN;
}

}  // namespace

void AppendCommand(std::initializer_list<std::string_view> words, std::string* to) {
  to->append("*").append(std::to_string(words.size())).append("\r\n");
  for (const std::string_view word : words) {
    to->append("$").append(std::to_string(word.size())).append("\r\n");
    to->append(word).append("\r\n");
  }
}

bool Line::Send(const std::string& commands) {
  if (context_ == nullptr) {
    context_.reset(redisConnectNonBlock(address_.host.c_str(), static_cast<int>(address_.port)));
    out_.clear();
    sent_ = 0;
    if (context_ == nullptr || context_->err != 0) {
      Close();
      return false;
    }
  }
  out_.append(commands);
  if (Write()) return true;
  Close();
  return false;
}

void Line::Close() {
  context_.reset();
  out_.clear();
  sent_ = 0;
}

bool Line::Write() {
  while (has_to_write()) {
    // hiredis would let the system end the process where the node has closed the connection.
    const ssize_t count =
        send(context_->fd, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) return IsForLater(errno);
    sent_ += static_cast<std::size_t>(count);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

bool Line::Read() {
  std::array<char, kReadBytes> buffer;
  for (;;) {
    const ssize_t count = recv(context_->fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0) return IsForLater(errno);
    if (count == 0) return false;
    const auto num_read = static_cast<std::size_t>(count);
    if (redisReaderFeed(context_->reader, buffer.data(), num_read) != REDIS_OK) return false;
    if (num_read < buffer.size()) return true;
  }
}

bool Line::Turn() {
  if (context_ != nullptr && Write() && Read()) return true;
  Close();
  return false;
}

Line::Reply Line::Next(bool* is_lost) {
  if (context_ == nullptr) {
    *is_lost = true;
    return nullptr;
  }
  void* reply = nullptr;
  if (redisReaderGetReply(context_->reader, &reply) != REDIS_OK) {
    *is_lost = true;
    Close();
  }
  return Reply(static_cast<redisReply*>(reply));
}

}  // namespace recsys
