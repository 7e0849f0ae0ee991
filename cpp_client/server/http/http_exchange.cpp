#include "server/http/http_exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace recsys {

using Lock = std::lock_guard<std::mutex>;

HttpMailbox::HttpMailbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void HttpMailbox::Post(Letter letter) {
  {
    const Lock lock(mutex_);
    letters_.push_back(std::move(letter));
    // Who has not taken those before will find this one too.
    if (letters_.size() > 1) return;
  }
  Wake();
}

void HttpMailbox::Wake() {
  const std::uint64_t one = 1;
  // It can only fail where nobody has looked for 2^64 letters.
  [[maybe_unused]] const ssize_t written = write(event_.number(), &one, sizeof(one));
}

std::vector<HttpMailbox::Letter> HttpMailbox::Take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.number(), &count, sizeof(count));
  const Lock lock(mutex_);
  return std::exchange(letters_, {});
}

HttpExchange::HttpExchange(HttpRequest request, std::shared_ptr<HttpMailbox> mailbox,
                           std::uint64_t connection, std::uint64_t number)
    : request_(std::move(request)),
      mailbox_(std::move(mailbox)),
      connection_(connection),
      number_(number) {}

std::string HttpExchange::TakeBody() {
  const Lock lock(mutex_);
  return std::exchange(request_.body, {});
}

bool HttpExchange::is_gone() const {
  const Lock lock(mutex_);
  return is_gone_;
}

void HttpExchange::Answer(HttpResponse response) {
  std::function<void()> unused;
  {
    const Lock lock(mutex_);
    if (std::exchange(is_answered_, true)) return;
    unused = std::exchange(gone_, nullptr);
  }
  mailbox_->Post({connection_, number_, 0.0, std::move(response)});
}

void HttpExchange::WhenGone(std::function<void()> gone) {
  {
    const Lock lock(mutex_);
    if (is_answered_) return;
    if (!is_gone_) {
      gone_ = std::move(gone);
      return;
    }
  }
  gone();
}

void HttpExchange::SetDeadline(double deadline_s) {
  mailbox_->Post({connection_, number_, deadline_s, {}});
}

void HttpExchange::TooLate() {
  std::function<void()> gone;
  {
    const Lock lock(mutex_);
    is_gone_ = true;
    gone = std::exchange(gone_, nullptr);
  }
  if (gone) gone();
}

void HttpExchange::Gone() {
  TakeBody();
  TooLate();
}

}  // namespace recsys
