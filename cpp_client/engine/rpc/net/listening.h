#ifndef RECSYS_ENGINE_RPC_NET_LISTENING_H_
#define RECSYS_ENGINE_RPC_NET_LISTENING_H_

#include <string>
#include <system_error>
#include <utility>

namespace recsys {

/// A file descriptor that is closed with its owner.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int number) : number_(number) {}
  FileHandle(FileHandle&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle() { Close(); }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int Release() { return std::exchange(number_, -1); }
  void Close();

 private:
  int number_ = -1;
};

/// A socket that listens, whose accepted connections send small packets at once.
struct ListeningSocket {
  FileHandle file;
  /// The one that the system chose, where it was to.
  int port = 0;
};

/// One socket, whatever the name stands for, so that there is one port; "::" takes IPv4 too.
/// Non-blocking. Throws std::system_error: the port is taken, the address is not this machine's, or
/// nobody knows the name.
ListeningSocket Listen(const std::string& host, int port, int backlog = 1024);

/// "127.0.0.1:8500", "[::1]:8500".
std::string AddressOf(const std::string& host, int port);

}  // namespace recsys

#endif  // RECSYS_ENGINE_RPC_NET_LISTENING_H_
