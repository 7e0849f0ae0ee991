#ifndef RECSYS_ENGINE_ARTIFACT_ARTIFACT_MODEL_H_
#define RECSYS_ENGINE_ARTIFACT_ARTIFACT_MODEL_H_

#include <string>

#include "engine/core/servable.h"
#include "engine/settings/settings.h"

namespace recsys {

/// Opens an artifact as a model that the engine can serve: an Engine::Opener. Blocks. Throws Error.
OpenedModel OpenArtifact(const std::string& path, const VersionSettings& settings);

}  // namespace recsys

#endif  // RECSYS_ENGINE_ARTIFACT_ARTIFACT_MODEL_H_
