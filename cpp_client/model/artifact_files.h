#ifndef RECSYS_MODEL_ARTIFACT_FILES_H_
#define RECSYS_MODEL_ARTIFACT_FILES_H_

#include <string>

#include "format/manifest/manifest.h"
#include "recsys/error.h"

namespace recsys {

/// Returns the manifest of a folder or of a single file, without loading the model
/// (recsys/artifact/load.py). Throws Error.
Manifest ManifestAt(const std::string& path);

bool IsArtifactFolder(const std::string& path);

/// Checks that a file has that size. Throws Error (kMissingPart, kPartSize).
void CheckPartSize(const std::string& file, std::int64_t size_bytes);

/// Returns the error for a part whose digest is not the manifest's.
Error ChangedPart(const std::string& name);

/// Checks that every part of a folder exists and has the size its manifest states; does nothing for
/// a single file.
void CheckAllSizes(const std::string& path, const Manifest& manifest);

/// Returns the target of that name, or, if `wanted` is empty, the first that this machine has the
/// devices for. Throws Error (kTarget).
const Target& ChooseTarget(const Manifest& manifest, const std::string& wanted);

/// Throws Error (kChecksum) if a member of a single file was changed since it was written. Members
/// of `unread_bytes` bytes are skipped; -1 reads all.
void CheckMembers(const std::string& path, std::int64_t unread_bytes);

/// Returns an extra file of a single file. Throws Error (kMissingPart, kChecksum).
std::string ExtraFile(const std::string& path, const std::string& name);

/// Returns all bytes of a file. Throws Error (kMissingPart).
std::string FileBytes(const std::string& path);

}  // namespace recsys

#endif  // RECSYS_MODEL_ARTIFACT_FILES_H_
