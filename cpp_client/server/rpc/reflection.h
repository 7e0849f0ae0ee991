#ifndef RECSYS_SERVER_RPC_REFLECTION_H_
#define RECSYS_SERVER_RPC_REFLECTION_H_

#include <string>
#include <vector>

#include "server/rpc/service.h"

namespace recsys {

inline constexpr const char* kReflectionServiceName = "grpc.reflection.v1alpha.ServerReflection";

/// grpc.reflection.v1alpha.ServerReflection: tells tools which services a port has, and describes
/// them. `services` are the names that it lists, in any order; what it describes is all that this
/// program knows.
Service MakeReflectionService(std::vector<std::string> services);

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_REFLECTION_H_
