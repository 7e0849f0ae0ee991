// The queue against a plain model of it: whatever happens in whatever order,
// nothing is lost or starved.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "recsys/error.h"
#include "tests/core/queue/queue_parts.h"

namespace recsys {
namespace {

constexpr double kEpsilonS = 1e-9;

BatchLimits Limits() {
  BatchLimits limits;
  limits.max_batch_rows = 8;
  limits.max_batch_ids = 40;
  limits.max_request_rows = 16;
  limits.max_request_ids = 80;
  limits.max_queue_rows = 32;
  limits.max_queue_ids = 160;
  limits.max_queue_bytes = 400;
  limits.max_delay_us = 3000;
  limits.priority_window_us = 10'000;
  return limits;
}

using Kept = std::vector<std::shared_ptr<Waiting>>;

/// Puts, cancels, takes and lets time pass; a vector in order of arrival is the truth.
class QueueMachine {
 public:
  explicit QueueMachine(unsigned seed) : random_(seed) {}

  void Step() {
    switch (Draw(0, 7)) {
      case 0:
      case 1:
      case 2:
      case 3:
        Put();
        break;
      case 4:
        Cancel();
        break;
      case 5:
        now_s_ += Draw(1, 20) / 1000.0;
        break;
      default:
        Take();
    }
    CheckCounts();
    CheckReadyAt();
  }

 private:
  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  static bool IsHuge(const Request& request) {
    return request.checked.num_rows > Limits().max_batch_rows ||
           request.checked.num_ids > Limits().max_batch_ids;
  }
  static double KeyS(const Request& request) {
    return request.enqueued_s + (static_cast<int>(request.priority) + IsHuge(request)) * 0.010;
  }
  static Amounts Total(const Kept& requests) {
    Amounts total{};
    for (const auto& request : requests) {
      total[Amount::kRows] += std::max<std::int64_t>(request->checked.num_rows, 1);
      total[Amount::kIds] += request->checked.num_ids;
      total[Amount::kBytes] += request->num_bytes;
    }
    return total;
  }
  bool Fits(const std::shared_ptr<Waiting>& request) const {
    Kept all = waiting_;
    all.push_back(request);
    const Amounts total = Total(all);
    return total[Amount::kRows] <= Limits().max_queue_rows &&
           total[Amount::kIds] <= Limits().max_queue_ids &&
           total[Amount::kBytes] <= Limits().max_queue_bytes;
  }
  void Expire() {
    for (const auto& request : Kept(waiting_)) {
      if (request->deadline_s > now_s_) continue;
      Remove(request.get());
      unreported_.insert(request->request_id);
    }
  }
  void Remove(const Request* request) {
    const auto at = std::find_if(waiting_.begin(), waiting_.end(),
                                 [&](const auto& one) { return one.get() == request; });
    ASSERT_NE(at, waiting_.end());
    waiting_.erase(at);
  }
  void CheckReport(const Requests& reported) {
    const Names names = NamesOf(reported);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), unreported_);
    EXPECT_EQ(names.size(), unreported_.size());
    unreported_.clear();
  }

  void Put() {
    const auto request = Wait(std::to_string(number_++), Draw(0, 16), Draw(0, 80));
    request->num_bytes = Draw(0, 200);
    request->priority = static_cast<Priority>(Draw(1, 3));
    if (Draw(0, 2) > 0) request->deadline_s = now_s_ + Draw(-1, 30) / 1000.0;
    if (!Fits(request)) Expire();
    Requests expired;
    if (!Fits(request)) {
      EXPECT_TRUE(queue_.Put(request, &expired));
      CheckReport(expired);
      return;
    }
    EXPECT_FALSE(queue_.Put(request, &expired));
    CheckReport(expired);
    waiting_.push_back(request);
  }

  void Cancel() {
    if (waiting_.empty()) return;
    const auto request =
        waiting_[static_cast<std::size_t>(Draw(0, static_cast<int>(waiting_.size()) - 1))];
    EXPECT_EQ(queue_.Cancel(*request), request);
    EXPECT_EQ(queue_.Cancel(*request), nullptr);
    Remove(request.get());
  }

  void Take() {
    Requests batch, expired;
    queue_.Take(&batch, &expired);
    Expire();
    CheckReport(expired);
    Kept taken;
    for (const auto& request : batch) {
      taken.push_back(std::static_pointer_cast<Waiting>(request));
      Remove(request.get());
    }
    if (taken.empty()) {
      EXPECT_TRUE(waiting_.empty());
      return;
    }
    EXPECT_TRUE(taken.size() == 1 || FitsBatch(taken));
    if (waiting_.empty()) return;
    for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_LE(KeyS(*taken[i - 1]), KeyS(*taken[i]));
    CheckFollowing(taken);
  }

  static bool FitsBatch(const Kept& batch) {
    const Amounts total = Total(batch);
    return total[Amount::kRows] <= Limits().max_batch_rows &&
           total[Amount::kIds] <= Limits().max_batch_ids;
  }

  /// The one that comes next would not have fitted any more.
  void CheckFollowing(const Kept& taken) {
    const auto following =
        *std::min_element(waiting_.begin(), waiting_.end(),
                          [](const auto& a, const auto& b) { return KeyS(*a) < KeyS(*b); });
    const double key_s = KeyS(*following) + kEpsilonS;
    EXPECT_LE(KeyS(*taken.back()), key_s);
    const auto ties = std::count_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& one) { return KeyS(*one) <= key_s; });
    Kept more = taken;
    more.push_back(following);
    EXPECT_TRUE(ties > 1 || !FitsBatch(more));
  }

  void CheckCounts() {
    const Amounts total = Total(waiting_);
    EXPECT_EQ(queue_.num_requests(), static_cast<std::int64_t>(waiting_.size()));
    EXPECT_EQ(queue_.num_rows(), total[Amount::kRows]);
    EXPECT_EQ(queue_.num_ids(), total[Amount::kIds]);
    EXPECT_EQ(queue_.num_bytes(), total[Amount::kBytes]);
    for (const auto& request : waiting_) EXPECT_NE(request->self, nullptr);
  }

  /// A batch is never put off for long.
  void CheckReadyAt() {
    const std::optional<double> ready_s = queue_.ReadyAt();
    EXPECT_EQ(ready_s.has_value(), !queue_.is_idle());
    if (waiting_.empty()) {
      EXPECT_EQ(ready_s.has_value(), !unreported_.empty());
      return;
    }
    ASSERT_TRUE(ready_s.has_value());
    if (*ready_s <= now_s_) return;
    for (const auto& request : waiting_) {
      EXPECT_LE(*ready_s, request->enqueued_s + 0.003 + kEpsilonS);
      EXPECT_LE(*ready_s, request->deadline_s - 0.003 + kEpsilonS);
    }
  }

  std::mt19937 random_;
  double now_s_ = 0;
  BatchQueue queue_{Limits(), [this] { return now_s_; }};
  Kept waiting_;
  std::set<std::string> unreported_;
  int number_ = 0;
};

TEST(QueueProperties, NothingIsLostOrStarvedWhateverHappens) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    QueueMachine machine(seed);
    for (int step = 0; step < 300; ++step) {
      machine.Step();
      if (testing::Test::HasFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace recsys
