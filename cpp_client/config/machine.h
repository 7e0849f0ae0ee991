#ifndef RECSYS_CONFIG_MACHINE_H_
#define RECSYS_CONFIG_MACHINE_H_

// What the process may have of the machine: processors, open files, addresses.

#include <cstdint>
#include <string>
#include <vector>

#include "config/settings.h"

namespace recsys {

/// The processors that this process may use, in ascending order.
std::vector<std::int64_t> OwnCpus();

/// Ports that may each come to have max_connections; the admin port is for a few.
std::int64_t NumPorts(const ServerSettings& settings);

/// Raises the process's soft limit of open files to what the connections need, as far as the hard
/// limit lets it. Called once, before the first port is opened.
void AllowOpenFiles(const ServerSettings& settings);

/// How many connections of all ports' the process may not have files for, even with its hard limit.
std::int64_t MissingOpenFiles(const ServerSettings& settings);

/// What the log says at the start where files are missing; empty where they are not.
std::string OpenFilesWarning(const ServerSettings& settings);

/// Whether an address is this machine's own loopback; of names "localhost" alone.
bool IsLoopback(const std::string& host);

}  // namespace recsys

#endif  // RECSYS_CONFIG_MACHINE_H_
