#ifndef RECSYS_FORMAT_MANIFEST_MANIFEST_CHECKS_H_
#define RECSYS_FORMAT_MANIFEST_MANIFEST_CHECKS_H_

// Checks that the parts of a manifest are consistent. All throw Error (kManifest).

#include <string>
#include <vector>

#include "format/manifest/manifest.h"

namespace recsys {

/// Each name must be unique.
void CheckOnce(const std::vector<std::string>& names, const std::string& at);

/// Each table's blocks must contain each of its columns once.
void CheckColumns(const Manifest& manifest);

/// The tables used by inputs must be those of the artifact, with the same number of rows.
void CheckSignatureTables(const Manifest& manifest);

/// Every target must have a ranking form if the signature names a context, and none otherwise.
void CheckRanking(const Manifest& manifest);

/// A target must be named after its devices, and their kinds must be supported.
void CheckDevices(const Target& target, const std::string& at);

/// A target's plan must place every table, in shards that consist of whole column blocks.
void CheckTargetPlan(const Target& target, const Manifest& manifest, const std::string& at);

}  // namespace recsys

#endif  // RECSYS_FORMAT_MANIFEST_MANIFEST_CHECKS_H_
