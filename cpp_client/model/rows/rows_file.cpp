#include "model/rows/rows_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/hash/sha256.h"
#include "base/text.h"
#include "format/file_name.h"
#include "model/rows/rows_memory.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

/// Returns pages as a tensor that unmaps them when it is released. `file`: -1 for anonymous memory.
at::Tensor Pages(int file, std::int64_t num_bytes) {
  const auto size = static_cast<std::size_t>(num_bytes);
  const int flags = MAP_PRIVATE | (file < 0 ? MAP_ANONYMOUS : 0);
  void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);
  if (pages == MAP_FAILED) {
    throw Error(ErrorKind::kInternal, "rows: the system has no room for them in memory");
  }
  return at::from_blob(
      pages, {num_bytes}, [size](void* at) { munmap(at, size); },
      at::TensorOptions().dtype(at::kByte));
}

}  // namespace

RowsFile::RowsFile(const std::string& path, std::vector<FileDigest> digests)
    : name_(NameOfPath(path)),
      file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)),
      digests_(std::move(digests)) {
  if (file_ < 0) throw Error(ErrorKind::kMissingPart, "part " + Repr(name_) + ": cannot be read");
  const State state = PresentState();
  known_ns_ = state.modified_ns;
  size_ = state.size;
}

RowsFile::~RowsFile() { close(file_); }

at::Tensor RowsFile::Held(std::int64_t num_bytes, const ModelOptions& options) const {
  const at::Tensor rows = options.copy_rows ? Copied(num_bytes, options.numa)
                                            : Mapped(num_bytes, options.random_access);
  if (options.lock_rows) LockRows(rows);
  return rows;
}

at::Tensor RowsFile::Mapped(std::int64_t num_bytes, bool random_access) const {
  // The file of this name may have been replaced since its size was checked; reading past the end
  // of a mapped file would kill the process.
  if (size_ < num_bytes) throw EndsEarly(size_, num_bytes);
  at::Tensor rows = Pages(file_, num_bytes);
  // Refused by kernels without huge pages.
  madvise(rows.mutable_data_ptr(), rows.nbytes(), random_access ? MADV_RANDOM : MADV_HUGEPAGE);
  return rows;
}

at::Tensor RowsFile::Copied(std::int64_t num_bytes, const std::string& numa) const {
  at::Tensor rows = Pages(-1, num_bytes);
  madvise(rows.mutable_data_ptr(), rows.nbytes(), MADV_HUGEPAGE);
  if (!numa.empty()) PlaceRows(rows.mutable_data_ptr(), num_bytes, numa);
  auto* to = rows.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t at = 0; at < num_bytes;) {
    const ssize_t num_read = pread(file_, to + at, static_cast<std::size_t>(num_bytes - at), at);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read <= 0) {
      throw EndsEarly(at, num_bytes);
    }
    at += num_read;
  }
  return rows;
}

Error RowsFile::EndsEarly(std::int64_t found, std::int64_t expected) const {
  return {ErrorKind::kPartSize, "part " + Repr(name_) + ": got " + std::to_string(found) +
                                    " bytes, expected " + std::to_string(expected)};
}

void RowsFile::Check() {
  if (PresentState() == State{size_, known_ns_}) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const State found = PresentState();
    if (found == State{size_, known_ns_}) return;
    if (!(spoiled_ == found) && HoldsTheSame(found)) {
      known_ns_ = found.modified_ns;
      return;
    }
    spoiled_ = found;
  }
  throw Error(
      ErrorKind::kChecksum,
      "part " + Repr(name_) +
          ": it was written to while it was in use; put the artifact back by renaming, never "
          "by writing into its files, and load it again");
}

bool RowsFile::HoldsTheSame(const State& state) const {
  if (state.size != size_) return false;
  std::vector<char> chunk(kChunkBytes);
  for (const FileDigest& part : digests_) {
    Sha256 digest;
    for (std::int64_t at = part.begin; at < part.end;) {
      const auto wanted = std::min(kChunkBytes, static_cast<std::size_t>(part.end - at));
      const ssize_t num_read = pread(file_, chunk.data(), wanted, at);
      if (num_read < 0 && errno == EINTR) continue;
      if (num_read <= 0) return false;
      digest.Update(chunk.data(), static_cast<std::size_t>(num_read));
      at += num_read;
    }
    if (HexOf(digest.Finish()) != part.sha256) return false;
  }
  // It was not written to while it was read.
  return PresentState() == state;
}

RowsFile::State RowsFile::PresentState() const {
  struct stat found {};
  if (fstat(file_, &found) != 0) return {-1, 0};
  return {found.st_size, found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
}

}  // namespace recsys
