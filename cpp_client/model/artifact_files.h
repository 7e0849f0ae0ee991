#ifndef RECSYS_MODEL_ARTIFACT_FILES_H_
#define RECSYS_MODEL_ARTIFACT_FILES_H_

#include <string>

#include "check/files/manifest.h"

namespace recsys {

/// The manifest of a folder or of a single file, without loading the model (recsys/artifact.py).
/// Throws Error.
Manifest ManifestAt(const std::string& path);

bool IsArtifactFolder(const std::string& path);

/// Throws Error (kMissingPart, kPartSize).
void CheckPartSize(const std::string& file, std::int64_t size_bytes);

/// Sees that every part of a folder is there and as long as its manifest says; of a single file
/// there is nothing to see.
void CheckAllSizes(const std::string& path, const Manifest& manifest);

/// The target of that name, or, where it is empty, the first that this machine has the devices for.
/// Throws Error (kTarget).
const Target& ChooseTarget(const Manifest& manifest, const std::string& wanted);

/// Throws Error (kChecksum) where a member of a single file is not what was written. Members of
/// `unread_bytes` bytes are not read; -1 reads all.
void CheckMembers(const std::string& path, std::int64_t unread_bytes);

/// All bytes of a file. Throws Error (kMissingPart).
std::string FileBytes(const std::string& path);

}  // namespace recsys

#endif  // RECSYS_MODEL_ARTIFACT_FILES_H_
