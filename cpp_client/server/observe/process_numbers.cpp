#include "server/observe/process_numbers.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace recsys {
namespace {

// What /proc/self/stat has behind the program's name, from the process's state on (man 5 proc).
constexpr std::size_t kUserTicks = 11;
constexpr std::size_t kSystemTicks = 12;
constexpr std::size_t kStartTicks = 19;
constexpr std::size_t kVirtualBytes = 20;
constexpr std::size_t kResidentPages = 21;

/// When the machine started, in seconds since the epoch; none where nobody says.
std::optional<double> ReadBootTime() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("btime ", 0) == 0) return std::strtod(line.c_str() + 6, nullptr);
  }
  return std::nullopt;
}

std::optional<ProcessNumbers::Stat> ReadStat(double boot_time_s) {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The program's name stands in parentheses and may hold anything.
  const std::size_t name_end = text.rfind(')');
  if (name_end == text.npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  const std::vector<std::string> parts{std::istream_iterator<std::string>(rest), {}};
  if (parts.size() <= kResidentPages) return std::nullopt;
  const auto number = [&parts](std::size_t i) { return std::strtod(parts[i].c_str(), nullptr); };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessNumbers::Stat stat;
  stat.virtual_memory_bytes = number(kVirtualBytes);
  stat.resident_memory_bytes = number(kResidentPages) * static_cast<double>(sysconf(_SC_PAGESIZE));
  stat.start_time_s = number(kStartTicks) / ticks + boot_time_s;
  stat.cpu_s = number(kUserTicks) / ticks + number(kSystemTicks) / ticks;
  return stat;
}

std::optional<double> ReadMaxOpen() {
  std::ifstream file("/proc/self/limits");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("Max open file", 0) != 0) continue;
    std::istringstream words(line);
    const std::vector<std::string> parts{std::istream_iterator<std::string>(words), {}};
    if (parts.size() < 4) return std::nullopt;
    if (parts[3] == "unlimited") return std::numeric_limits<double>::infinity();
    return std::strtod(parts[3].c_str(), nullptr);
  }
  return std::nullopt;
}

std::optional<double> CountOpen() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), closedir);
  if (folder == nullptr) return std::nullopt;
  double count = 0;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') ++count;
  }
  return count;
}

}  // namespace

ProcessNumbers ReadProcessNumbers() {
  static const std::optional<double> boot_time_s = ReadBootTime();
  ProcessNumbers numbers;
  if (!boot_time_s) return numbers;
  numbers.stat = ReadStat(*boot_time_s);
  const std::optional<double> num_open = CountOpen();
  const std::optional<double> max_open = ReadMaxOpen();
  if (num_open && max_open) numbers.files = ProcessNumbers::Files{*num_open, *max_open};
  return numbers;
}

}  // namespace recsys
