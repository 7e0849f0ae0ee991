#ifndef RECSYS_SERVER_ARTIFACT_MODEL_H_
#define RECSYS_SERVER_ARTIFACT_MODEL_H_

#include <string>

#include "config/settings.h"
#include "server/core/served_model.h"

namespace recsys {

/// Opens an artifact as a model that can be served. Blocks. Throws Error.
OpenedModel OpenArtifact(const std::string& path, const ModelSettings& settings);

}  // namespace recsys

#endif  // RECSYS_SERVER_ARTIFACT_MODEL_H_
