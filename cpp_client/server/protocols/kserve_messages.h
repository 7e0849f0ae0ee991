#ifndef RECSYS_SERVER_PROTOCOLS_KSERVE_MESSAGES_H_
#define RECSYS_SERVER_PROTOCOLS_KSERVE_MESSAGES_H_

// What Open Inference's clients may know of the server, its models and their versions, as the
// protocol's own messages (serve/kserve_messages.py, serve/kserve_repository.py).

#include <string>
#include <string_view>
#include <vector>

#include "inference/open_inference.pb.h"
#include "server/core/gateway.h"
#include "server/core/hosted.h"
#include "server/models/status.h"

namespace recsys {

inference::ServerMetadataResponse ServerMetadata();

/// `versions`: all that are loaded.
inference::ModelMetadataResponse KserveModelMetadata(const Hosted& hosted,
                                                     const std::vector<std::string>& versions);

/// What of a Triton model's configuration has a meaning here.
inference::ModelConfig KserveModelConfig(const Hosted& hosted);

/// All versions of all models; or those that are ready.
inference::RepositoryIndexResponse RepositoryIndex(const std::vector<ModelStatus>& statuses,
                                                   bool only_ready);

/// The versions of a model that answer.
std::vector<std::string> LoadedVersions(const std::vector<ModelStatus>& statuses,
                                        std::string_view model);

/// Counts and times since the versions were loaded. Empty `model`: of all; empty `version`: of all
/// that are loaded. Throws Error: there is no such model or version, or it is not ready.
inference::ModelStatisticsResponse ModelStatistics(Gateway& gateway, std::string_view model,
                                                   std::string_view version);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_KSERVE_MESSAGES_H_
