#include "model/rows/rows_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "base/text.h"
#include "recsys/error.h"

// Linux 5.14; older headers lack it.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace recsys {
namespace {

constexpr unsigned long kMaxNodes = 1024;

Error NotLocked(std::int64_t num_bytes, int number) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool is_limit = number == ENOMEM || number == EPERM || number == EAGAIN;
  if (is_limit && limit.rlim_cur != RLIM_INFINITY) {
    return {ErrorKind::kRowsMemory,
            "lock_rows: got a limit of " + std::to_string(limit.rlim_cur) +
                " bytes for locked memory (RLIMIT_MEMLOCK), expected room for " +
                std::to_string(num_bytes) +
                " more; raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of "
                "Docker), or leave lock_rows off"};
  }
  return {ErrorKind::kRowsMemory, "lock_rows: the system does not lock " +
                                      std::to_string(num_bytes) +
                                      " bytes: " + std::strerror(number)};
}

/// Reads a byte of every page.
void ReadAll(const std::uint8_t* rows, std::int64_t num_bytes, std::int64_t page_bytes) {
  for (std::int64_t at = 0; at < num_bytes; at += page_bytes) {
    static_cast<void>(static_cast<const volatile std::uint8_t*>(rows)[at]);
  }
}

}  // namespace

void CheckRowsMemory(const ModelOptions& options) {
  const std::string& numa = options.numa;
  if (numa.empty()) return;
  if (numa != "interleave" && numa != "local") {
    throw Error(ErrorKind::kConfig,
                "numa: got " + Repr(numa) + ", expected one of interleave, local, or none");
  }
  if (!options.copy_rows) {
    throw Error(ErrorKind::kConfig,
                "numa: got " + Repr(numa) +
                    " for mapped rows, whose pages the system places; set copy_rows too");
  }
}

RowsPages PagesOf(const at::Tensor& rows) {
  const auto start = reinterpret_cast<std::uintptr_t>(rows.const_data_ptr());
  const auto num_bytes = static_cast<std::int64_t>(rows.nbytes());
  const std::uintptr_t end = start + rows.nbytes();
  std::map<std::string, std::int64_t> found;
  bool is_within = false;
  RowsPages pages;
  std::ifstream maps("/proc/self/smaps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t dash = line.find('-');
    if (dash < colon) {  // a mapping's first line: 7f00-7f80 rw-p 00000000 00:00 0
      const std::uintptr_t first = std::stoull(line, nullptr, 16);
      const std::uintptr_t last = std::stoull(line.substr(dash + 1), nullptr, 16);
      is_within = first < end && start < last;
    } else if (is_within && line.size() > 3 && line.compare(line.size() - 3, 3, " kB") == 0) {
      constexpr std::int64_t kKib = 1024;
      found[line.substr(0, colon)] = kKib * std::stoll(line.substr(colon + 1));
    } else if (is_within && line.compare(0, colon, "VmFlags") == 0) {  // a mapping's last line
      pages.resident_bytes += found["Rss"];
      pages.huge_bytes += found["AnonHugePages"] + found["FilePmdMapped"] + found["ShmemPmdMapped"];
      // The field Locked counts a page by halves where two processes map it.
      if (line.find(" lo") != std::string::npos) pages.locked_bytes += found["Rss"];
    }
  }
  // Neighbouring memory of the same kind may be part of the mapping.
  pages.resident_bytes = std::min(pages.resident_bytes, num_bytes);
  pages.huge_bytes = std::min(pages.huge_bytes, num_bytes);
  pages.locked_bytes = std::min(pages.locked_bytes, num_bytes);
  return pages;
}

void LockRows(const at::Tensor& rows) {
  const auto page_bytes = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  const auto num_bytes = static_cast<std::int64_t>(rows.nbytes());
  const auto* data = static_cast<const std::uint8_t*>(rows.const_data_ptr());
  const auto before = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(data) %
                                               static_cast<std::uintptr_t>(page_bytes));
  auto* start = const_cast<std::uint8_t*>(data) - before;
  const std::size_t size = rows.nbytes() + before;
  // A plain mlock would copy every page of a private mapping, as if it were about to be written to.
  if (mlock2(start, size, MLOCK_ONFAULT) != 0) throw NotLocked(num_bytes, errno);
  if (madvise(start, size, MADV_POPULATE_READ) != 0 && errno == EINVAL) {
    ReadAll(data, num_bytes, page_bytes);
  }
}

void PlaceRows(void* start, std::int64_t num_bytes, const std::string& numa) {
  std::array<unsigned long, kMaxNodes / (8 * sizeof(unsigned long))> nodes{};
  const auto size = static_cast<unsigned long>(num_bytes);
  long done = syscall(SYS_get_mempolicy, nullptr, nodes.data(), kMaxNodes, nullptr,
                      static_cast<unsigned long>(MPOL_F_MEMS_ALLOWED));
  if (done == 0 && numa == "interleave") {
    done = syscall(SYS_mbind, start, size, MPOL_INTERLEAVE, nodes.data(), kMaxNodes, 0UL);
  } else if (done == 0) {
    done = syscall(SYS_mbind, start, size, MPOL_LOCAL, nullptr, 0UL, 0UL);
  }
  if (done == 0) return;
  throw Error(ErrorKind::kRowsMemory,
              "numa: got " + Repr(numa) +
                  ", which this system refuses (mbind: " + std::strerror(errno) +
                  "); it needs a kernel with NUMA, and in containers permission to call mbind; "
                  "leave numa out");
}

}  // namespace recsys
