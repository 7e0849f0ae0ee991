#include "server/rpc/acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace recsys {
namespace {

// Where the process has no file left, connections wait to be accepted until it may have one again.
constexpr int kNoFilesLeftMs = 50;
constexpr int kForever = -1;

bool IsOutOfFiles(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Acceptor::Acceptor(ListeningSocket listening, std::int64_t max_connections,
                   std::function<void(int, int)> take)
    : listening_(std::move(listening)), count_(max_connections), take_(std::move(take)) {
  stop_ = FileHandle(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([this] { Loop(); });
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.number(), 1);
  thread_.join();
  listening_.file.Close();
}

void Acceptor::Loop() {
  pollfd files[2] = {{stop_.number(), POLLIN, 0}, {listening_.file.number(), POLLIN, 0}};
  bool is_out_of_files = false;
  while (true) {
    const int ready =
        poll(files, is_out_of_files ? 1 : 2, is_out_of_files ? kNoFilesLeftMs : kForever);
    if (ready < 0 && errno != EINTR) return;
    if (ready > 0 && files[0].revents != 0) return;
    is_out_of_files = !AcceptAll();
  }
}

// False where the process has no files for more.
bool Acceptor::AcceptAll() {
  while (true) {
    FileHandle file(
        accept4(listening_.file.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!file.is_open()) {
      // Clients that have gone again, and faults of the network that accept tells of, are no faults
      // of the port.
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (IsOutOfFiles(errno)) return false;
      if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) return false;
      continue;
    }
    if (count_.Take(file.number())) take_(listening_.file.number(), file.Release());
  }
}

}  // namespace recsys
