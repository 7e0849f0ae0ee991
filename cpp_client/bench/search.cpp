#include "bench/search.h"

#include <algorithm>
#include <map>
#include <vector>

namespace recsys::bench {
namespace {

constexpr int kMostSteps = 40;
// So many of three looks that agree are enough.
constexpr int kEnough = 2;
// How far to look beyond a border that a second look has moved.
constexpr double kStride = 1.25;
// A server that fails at so small a share of the first rate fails for other reasons than the rate.
constexpr double kLeastShare = 0.01;

/// What every rate was found to be. A rate passes if more of its measurements passed than failed.
struct Votes {
  int num_ok = 0;
  int num_not = 0;
  Verdict last_failure = Verdict::kFailed;

  bool passes() const { return num_ok > num_not; }
  bool is_undecided() const { return num_ok == num_not; }
  bool is_settled() const { return std::max(num_ok, num_not) >= kEnough; }
};

class Search {
 public:
  Search(double first_per_s, double precision) : first_per_s_(first_per_s), precision_(precision) {}

  void Add(double rate_per_s, Verdict verdict) {
    Votes& votes = by_rate_[rate_per_s];
    if (verdict == Verdict::kOk) {
      ++votes.num_ok;
    } else {
      ++votes.num_not;
      votes.last_failure = verdict;
    }
    FindBorder();
  }

  /// The rate to measure next; none once the border is narrow and sure.
  std::optional<double> Next() const {
    for (const auto& [rate, votes] : by_rate_) {
      if (votes.is_undecided()) return rate;
    }
    const double stride = had_border_ ? kStride : 2.0;
    if (!low_) return high_ ? *high_ / stride : first_per_s_;
    if (!high_) return *low_ * stride;
    if (*high_ - *low_ > precision_ * *low_) return (*low_ + *high_) / 2;
    for (const double rate : {*low_, *high_}) {
      if (!by_rate_.at(rate).is_settled()) return rate;
    }
    return std::nullopt;
  }

  Found Result(bool is_settled) const {
    Found found{low_, high_, std::nullopt, is_settled};
    if (high_) found.limit = by_rate_.at(*high_).last_failure;
    return found;
  }

 private:
  /// The lowest rate that fails, and below it the highest that passes.
  void FindBorder() {
    low_ = high_ = std::nullopt;
    for (const auto& [rate, votes] : by_rate_) {
      if (!votes.passes()) {
        high_ = rate;
        break;
      }
      low_ = rate;
    }
    had_border_ = had_border_ || (low_ && high_);
  }

  const double first_per_s_;
  const double precision_;
  std::map<double, Votes> by_rate_;
  std::optional<double> low_;
  std::optional<double> high_;
  bool had_border_ = false;
};

}  // namespace

Found FindRate(const std::function<Verdict(double)>& measure, double first_per_s,
               double precision) {
  Search search(first_per_s, precision);
  for (int step = 0; step < kMostSteps; ++step) {
    const std::optional<double> rate_per_s = search.Next();
    if (!rate_per_s) return search.Result(true);
    if (*rate_per_s < kLeastShare * first_per_s) break;
    search.Add(*rate_per_s, measure(*rate_per_s));
  }
  return search.Result(false);
}

}  // namespace recsys::bench
