#ifndef RECSYS_CHECK_FILES_MANIFEST_CHECKS_H_
#define RECSYS_CHECK_FILES_MANIFEST_CHECKS_H_

// What a manifest's parts say of each other. All throw Error (kManifest), in the words of
// recsys/manifest_checks.py.

#include <string>
#include <vector>

#include "check/files/manifest.h"

namespace recsys {

/// No name may stand twice.
void CheckOnce(const std::vector<std::string>& names, const std::string& at);

/// Each table's blocks hold each of its columns once.
void CheckColumns(const Manifest& manifest);

/// The tables that inputs are looked up in are those of the artifact, with as many rows.
void CheckSignatureTables(const Manifest& manifest);

/// Every target has a ranking form where the signature names a context, and none has one elsewhere.
void CheckRanking(const Manifest& manifest);

/// A target's name is its devices, and they are of a kind that can be loaded on.
void CheckDevices(const Target& target, const std::string& at);

/// A target's plan places every table, in shards that are made of whole column blocks.
void CheckTargetPlan(const Target& target, const Manifest& manifest, const std::string& at);

}  // namespace recsys

#endif  // RECSYS_CHECK_FILES_MANIFEST_CHECKS_H_
