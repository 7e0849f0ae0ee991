#include "port/net/listening.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace recsys {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* first) const { freeaddrinfo(first); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

[[noreturn]] void ThrowLast(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Addresses Resolved(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == EAI_SYSTEM) ThrowLast("getaddrinfo");
  if (error != 0) {
    throw std::system_error(std::make_error_code(std::errc::address_not_available),
                            gai_strerror(error));
  }
  return Addresses(found);
}

void Set(int file, int level, int option, int value) {
  if (setsockopt(file, level, option, &value, sizeof value) != 0) ThrowLast("setsockopt");
}

int PortOf(int file) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    ThrowLast("getsockname");
  in_port_t port = 0;
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 found = {};
    std::memcpy(&found, &address, sizeof found);
    port = found.sin6_port;
  } else {
    sockaddr_in found = {};
    std::memcpy(&found, &address, sizeof found);
    port = found.sin_port;
  }
  return ntohs(port);
}

constexpr const char kUnix[] = "unix:";
constexpr std::size_t kUnixChars = sizeof kUnix - 1;

bool IsUnix(const std::string& host) { return host.compare(0, kUnixChars, kUnix) == 0; }

ListeningSocket ListenAt(const std::string& path, int backlog) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw std::system_error(std::make_error_code(std::errc::filename_too_long), path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  FileHandle file(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!file.is_open()) ThrowLast("socket");
  if (bind(file.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    ThrowLast("bind");
  }
  if (listen(file.number(), backlog) != 0) ThrowLast("listen");
  return {std::move(file), 0};
}

}  // namespace

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    Close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void FileHandle::Close() {
  if (number_ >= 0) close(number_);
  number_ = -1;
}

ListeningSocket Listen(const std::string& host, int port, int backlog) {
  if (IsUnix(host)) return ListenAt(host.substr(kUnixChars), backlog);
  const Addresses addresses = Resolved(host, port);
  const addrinfo& first = *addresses;
  FileHandle file(socket(first.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!file.is_open()) ThrowLast("socket");
  Set(file.number(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (first.ai_family == AF_INET6) Set(file.number(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // Inherited by accepted connections.
  Set(file.number(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (bind(file.number(), first.ai_addr, first.ai_addrlen) != 0) ThrowLast("bind");
  if (listen(file.number(), backlog) != 0) ThrowLast("listen");
  const int found = PortOf(file.number());
  return {std::move(file), found};
}

std::string AddressOf(const std::string& host, int port) {
  if (IsUnix(host)) return host;
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace recsys
