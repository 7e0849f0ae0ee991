#ifndef RECSYS_SERVER_PROTOCOLS_ADMIN_H_
#define RECSYS_SERVER_PROTOCOLS_ADMIN_H_

// The services of the admin port, where every call must show the token (RpcOptions::authorize) and
// is logged (serve/admin_service.py, serve/admin.py). Whatever they are given by reference must
// outlive the services and the calls that they answer. What a caller has begun goes on to its end,
// even if the caller has gone.

#include <functional>

#include "server/models/manager.h"
#include "server/rpc/service.h"
#include "server/rpc/worker.h"

namespace recsys {

/// recsys.v1.AdminService. Changes run in the worker, a thread of it for each; those that wait for
/// others of their model hold one too.
Service AdminService(ModelManager& manager, Worker& worker);

/// inference.GRPCInferenceService as the admin port has it: `kserve` (KserveService) with leave to
/// load and unload, and with its calls about the repository in the log.
Service RepositoryService(Service kserve, ModelManager& manager, Worker& worker);

/// For RpcOptions::authorize: `check` (TokenCheck::Check), whose refusals are written down.
/// Thread-safe if that is.
std::function<Status(const Call&)> AdminGate(std::function<Status(const Call&)> check);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_ADMIN_H_
