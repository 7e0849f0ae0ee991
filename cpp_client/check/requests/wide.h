#ifndef RECSYS_CHECK_REQUESTS_WIDE_H_
#define RECSYS_CHECK_REQUESTS_WIDE_H_

#include <string>

namespace recsys {

/// Holds the product of any two int64, so that no untrusted count can overflow.
__extension__ typedef __int128 Wide;

std::string WideText(Wide value);

}  // namespace recsys

#endif  // RECSYS_CHECK_REQUESTS_WIDE_H_
