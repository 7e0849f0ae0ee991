#ifndef RECSYS_SERVER_RPC_CHANNEL_ARGUMENTS_H_
#define RECSYS_SERVER_RPC_CHANNEL_ARGUMENTS_H_

#include <string>
#include <utility>
#include <vector>

#include "config/settings.h"

namespace recsys {

/// gRPC's channel arguments that keep the clients of a port within `limits` (serve/connections.py),
/// as far as gRPC 1.51 knows them. The number of connections it does not: Acceptor counts them.
std::vector<std::pair<std::string, int>> ChannelArguments(const ConnectionLimits& limits);

/// Raises the process's soft limit of open files to what the connections of so many ports need, as
/// far as the hard limit lets it.
void AllowOpenFiles(const ConnectionLimits& limits, int num_ports);
/// How many connections of all ports' the process may not have files for, even with its hard limit.
std::int64_t MissingOpenFiles(const ConnectionLimits& limits, int num_ports);

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_CHANNEL_ARGUMENTS_H_
