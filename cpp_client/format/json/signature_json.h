#ifndef RECSYS_FORMAT_JSON_SIGNATURE_JSON_H_
#define RECSYS_FORMAT_JSON_SIGNATURE_JSON_H_

#include <string>

#include "format/json/json.h"
#include "recsys/signature.h"

namespace recsys {

/// Reads the untrusted signature of a manifest. Throws Error (kManifest).
Signature SignatureFromJson(const Json& data);

/// Writes the signature as recsys/inputs/signature.py does.
Json SignatureToJson(const Signature& signature);

/// Returns "reject", "hash", "zero", "mapped" or "fmix64".
std::string IdPolicyName(IdPolicy policy);

}  // namespace recsys

#endif  // RECSYS_FORMAT_JSON_SIGNATURE_JSON_H_
