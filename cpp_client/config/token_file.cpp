#include "config/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "base/text.h"
#include "config/disk.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// Shorter tokens can be guessed. `openssl rand -hex 32` gives 64 characters.
constexpr std::size_t kMinTokenLength = 16;
constexpr std::size_t kMaxTokenBytes = 4096;
constexpr mode_t kModeBits = 07777;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

std::string Stripped(const std::string& text) {
  constexpr char kSpace[] = " \t\n\r\v\f\x1c\x1d\x1e\x1f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void CheckMode(const std::string& key, const std::string& path, mode_t mode) {
  if ((mode & (S_IRWXO | S_IWGRP)) == 0) return;
  std::array<char, 8> digits{};
  std::snprintf(digits.data(), digits.size(), "%04o", mode & kModeBits);
  Refuse(key + ": " + Repr(path) + " has mode " + digits.data() +
         ", expected none but its owner to write it and none but its owner and group to read it; "
         "chmod 0600 does that");
}

}  // namespace

std::string ReadToken(const std::string& path, const std::string& key) {
  std::string data;
  struct stat found {};
  try {
    // Without waiting: nobody may ever write to a pipe of that name.
    const Descriptor file(path, O_NONBLOCK);
    // Of the open file, so that nobody can put another one in between.
    if (fstat(file.get(), &found) != 0) throw std::system_error(errno, std::generic_category());
    if (S_ISDIR(found.st_mode)) throw std::system_error(EISDIR, std::generic_category());
    if (!S_ISREG(found.st_mode)) {
      Refuse(key + ": " + Repr(path) + " is no regular file, expected one");
    }
    data = file.Read(kMaxTokenBytes + 1);
  } catch (const std::system_error& error) {
    Refuse(key + ": cannot read " + Repr(path) + ": " + std::strerror(error.code().value()));
  }
  CheckMode(key, path, found.st_mode);
  const std::string token = Stripped(data);
  const bool is_printable =
      std::all_of(token.begin(), token.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (token.size() < kMinTokenLength || token.size() > kMaxTokenBytes || !is_printable) {
    Refuse(key + ": " + Repr(path) + " holds no token, expected one line of " +
           std::to_string(kMinTokenLength) + " to " + std::to_string(kMaxTokenBytes) +
           " printable ASCII characters, such as openssl rand -hex 32 gives");
  }
  return token;
}

}  // namespace recsys
