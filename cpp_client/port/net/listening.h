#ifndef RECSYS_PORT_NET_LISTENING_H_
#define RECSYS_PORT_NET_LISTENING_H_

#include <string>
#include <system_error>
#include <utility>

namespace recsys {

/// A file descriptor that is closed by its owner's destructor.
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

/// A listening socket, whose accepted connections send small packets at once.
struct ListeningSocket {
  FileHandle file;
  /// The actual port, which the system may have chosen.
  int port = 0;
};

/// Opens a single non-blocking socket, even if the name has several addresses, so that there is one
/// port; "::" accepts IPv4 too. Throws std::system_error if the port is in use, the address is not
/// this machine's, or the name cannot be resolved.
/// A host "unix:PATH" is a socket in the file system, which must not exist yet; its port is 0.
ListeningSocket Listen(const std::string& host, int port, int backlog = 1024);

/// Returns an address such as "127.0.0.1:8500" or "[::1]:8500".
std::string AddressOf(const std::string& host, int port);

}  // namespace recsys

#endif  // RECSYS_PORT_NET_LISTENING_H_
