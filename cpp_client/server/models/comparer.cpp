#include "server/models/comparer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

namespace recsys {
namespace {

// A float32 has a relative error of 6e-8, a sum of a thousand terms in another order one of some
// 1e-5 at worst: other batches, threads and devices stay below this, other rows do not.
constexpr double kRelativeTolerance = 1e-4;
constexpr double kAbsoluteTolerance = 1e-6;
// Pairs that may wait; beyond that they are dropped, because they hold memory.
constexpr std::size_t kMaxWaiting = 1024;

float FloatAt(std::string_view values, std::size_t at) {
  float value = 0;
  std::memcpy(&value, values.data() + at * sizeof(float), sizeof(float));
  return value;
}

bool IsSame(double expected, double got) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got);
  if (std::isinf(expected) || std::isinf(got)) return expected == got;
  return std::abs(got - expected) <= kAbsoluteTolerance + kRelativeTolerance * std::abs(expected);
}

bool SameValues(std::string_view expected, std::string_view got) {
  if (expected == got) return true;
  if (expected.size() != got.size()) return false;
  for (std::size_t at = 0; at < expected.size() / sizeof(float); ++at) {
    if (!IsSame(FloatAt(expected, at), FloatAt(got, at))) return false;
  }
  return true;
}

}  // namespace

OutputOrder MatchOutputs(const Signature& expected, const Signature& other) {
  if (expected.outputs.size() != other.outputs.size()) return std::nullopt;
  std::vector<std::size_t> order;
  for (const Output& output : expected.outputs) {
    const auto same =
        std::find_if(other.outputs.begin(), other.outputs.end(), [&output](const Output& one) {
          return one.name == output.name && one.shape == output.shape;
        });
    if (same == other.outputs.end()) return std::nullopt;
    order.push_back(static_cast<std::size_t>(same - other.outputs.begin()));
  }
  return order;
}

bool SameRows(const Rows& expected, const Rows& got, const OutputOrder& order) {
  if (!order || expected.num_rows != got.num_rows) return false;
  if (expected.values.size() != order->size() || got.values.size() != order->size()) return false;
  for (std::size_t at = 0; at < order->size(); ++at) {
    if (!SameValues(expected.values[at], got.values[(*order)[at]])) return false;
  }
  return true;
}

Comparer::~Comparer() { Close(); }

void Comparer::Compare(Pair pair) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_closed_ && pairs_.size() < kMaxWaiting) {
      pairs_.push_back(std::move(pair));
      if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
      wake_.notify_one();
      return;
    }
  }
  pair.shadow->metrics().CountShadow(ShadowResult::kDropped);
}

void Comparer::Close() {
  std::thread thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    thread = std::move(thread_);
    wake_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

void Comparer::Loop() {
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait(lock, [this] { return is_closed_ || !pairs_.empty(); });
    if (pairs_.empty()) return;
    const Pair pair = std::move(pairs_.front());
    pairs_.pop_front();
    lock.unlock();
    const bool is_same = SameRows(pair.expected, pair.got, *pair.order);
    pair.shadow->metrics().CountShadow(is_same ? ShadowResult::kSame : ShadowResult::kDifferent);
  }
}

}  // namespace recsys
