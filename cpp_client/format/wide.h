#ifndef RECSYS_FORMAT_WIDE_H_
#define RECSYS_FORMAT_WIDE_H_

#include <string>
#include <utility>
#include <vector>

namespace recsys {

/// Holds the product of any two int64, so that no untrusted count can overflow.
__extension__ typedef __int128 Wide;

inline std::string WideText(Wide value) {
  const bool is_negative = value < 0;
  std::string text;
  do {
    const int digit = static_cast<int>(value % 10);
    text.insert(text.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    value /= 10;
  } while (value != 0);
  return is_negative ? '-' + text : text;
}

/// Returns `[(0, 8), (8, 16)]`.
inline std::string RangesText(const std::vector<std::pair<Wide, Wide>>& ranges) {
  std::string text = "[";
  for (const auto& [start, end] : ranges) {
    text += (text.size() > 1 ? ", (" : "(") + WideText(start) + ", " + WideText(end) + ")";
  }
  return text + "]";
}

}  // namespace recsys

#endif  // RECSYS_FORMAT_WIDE_H_
