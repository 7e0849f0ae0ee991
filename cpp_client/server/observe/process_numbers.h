#ifndef RECSYS_SERVER_OBSERVE_PROCESS_NUMBERS_H_
#define RECSYS_SERVER_OBSERVE_PROCESS_NUMBERS_H_

#include <optional>

namespace recsys {

/// What /proc tells of this process; none where it could not be read.
struct ProcessNumbers {
  struct Stat {
    double virtual_memory_bytes = 0;
    double resident_memory_bytes = 0;
    /// Since the epoch.
    double start_time_s = 0;
    /// User and system.
    double cpu_s = 0;
  };
  struct Files {
    double num_open = 0;
    double max_open = 0;
  };

  std::optional<Stat> stat;
  std::optional<Files> files;
};

/// Reads them now. Thread-safe; never throws.
ProcessNumbers ReadProcessNumbers();

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_PROCESS_NUMBERS_H_
