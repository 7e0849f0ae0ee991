#ifndef RECSYS_PORT_BOUNDS_TOKEN_BUCKET_H_
#define RECSYS_PORT_BOUNDS_TOKEN_BUCKET_H_

#include <algorithm>
#include <cmath>

namespace recsys::http2 {

/// A rate with a burst: tokens accumulate over time and are returned for work done. Not
/// thread-safe.
class TokenBucket {
 public:
  TokenBucket(double per_s, double burst, double now_s)
      : per_s_(per_s), burst_(burst), tokens_(burst), filled_s_(now_s) {}

  /// Takes tokens; returns whether there were enough.
  bool Take(double tokens, double now_s) {
    if (std::isinf(per_s_)) return true;
    if (tokens > tokens_) {
      tokens_ = std::min(burst_, tokens_ + (now_s - filled_s_) * per_s_);
      filled_s_ = now_s;
    }
    tokens_ -= tokens;
    return tokens_ >= 0;
  }
  void Give(double tokens) { tokens_ = std::min(burst_, tokens_ + tokens); }

 private:
  double per_s_;
  double burst_;
  double tokens_;
  double filled_s_;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_BOUNDS_TOKEN_BUCKET_H_
