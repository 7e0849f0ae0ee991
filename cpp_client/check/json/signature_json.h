#ifndef RECSYS_CHECK_JSON_SIGNATURE_JSON_H_
#define RECSYS_CHECK_JSON_SIGNATURE_JSON_H_

#include <string>

#include "check/json/json.h"
#include "recsys/signature.h"

namespace recsys {

/// Reads the signature of a manifest; trusts nothing. Throws Error (kManifest) with the texts of
/// recsys/signature.py.
Signature SignatureFromJson(const Json& data);

/// As recsys/signature.py writes it.
Json SignatureToJson(const Signature& signature);

/// "reject", "hash", "zero" or "mapped".
std::string IdPolicyName(IdPolicy policy);

}  // namespace recsys

#endif  // RECSYS_CHECK_JSON_SIGNATURE_JSON_H_
