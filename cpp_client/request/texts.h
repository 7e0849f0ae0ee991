#ifndef RECSYS_REQUEST_TEXTS_H_
#define RECSYS_REQUEST_TEXTS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// Returns XXH64 without its highest bit: never negative.
std::int64_t HashOfText(std::string_view text);

/// A text without an ID, its position, and whether it is a list as tables have it.
struct WrongText {
  std::string_view text;
  std::int64_t position;
  bool is_list;
};

/// Writes the ID of each text, as recsys/base/hashing.py and serve/engine/reference/texts.py define
/// it. Stops at the first text that has none and returns it.
std::optional<WrongText> WriteIdsOfTexts(const SparseInput& input, const RawTexts& texts,
                                         std::int64_t* ids);

}  // namespace recsys

#endif  // RECSYS_REQUEST_TEXTS_H_
