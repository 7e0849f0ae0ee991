#ifndef RECSYS_FORMAT_MANIFEST_VERIFIED_ROWS_H_
#define RECSYS_FORMAT_MANIFEST_VERIFIED_ROWS_H_

// Rows that an export has verified (recsys/artifact/batches/answers.py).

#include <cstdint>
#include <string>
#include <vector>

#include "format/json/json.h"
#include "recsys/error.h"
#include "recsys/model.h"
#include "recsys/signature.h"

namespace recsys {

/// Reads untrusted rows, the manifest's `answers`; none if it holds nothing. Throws Error
/// (kManifest).
VerifiedRows ReadVerifiedRows(const Json& answers, const Signature& signature);

/// Returns what `answers` holds under a key; null if it holds nothing.
const Json& AnswersField(const Json& answers, const char* key);
/// Reads float32 numbers, which are written as the whole numbers of their bits.
std::vector<float> AnswersFloats(const Json& numbers, const std::string& at, std::int64_t count);
Error WrongAnswers(const std::string& at, const std::string& expected);

}  // namespace recsys

#endif  // RECSYS_FORMAT_MANIFEST_VERIFIED_ROWS_H_
