#ifndef RECSYS_SERVER_MODELS_REASON_H_
#define RECSYS_SERVER_MODELS_REASON_H_

#include <string>

namespace recsys {

/// Why something went wrong.
struct Reason {
  /// In words without paths and addresses: for whoever asks.
  std::string text;
  /// Whether operators have to mend an artifact, a file or a setting.
  bool is_expected = false;
};

/// Of whatever is being handled: to be called within a catch block. The log gets everything, after
/// `what`.
Reason ReasonOfCurrentException(const std::string& what);

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_REASON_H_
