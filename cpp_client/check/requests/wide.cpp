#include "check/requests/wide.h"

namespace recsys {

std::string WideText(Wide value) {
  const bool is_negative = value < 0;
  std::string text;
  do {
    const int digit = static_cast<int>(value % 10);
    text.insert(text.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    value /= 10;
  } while (value != 0);
  return is_negative ? '-' + text : text;
}

}  // namespace recsys
