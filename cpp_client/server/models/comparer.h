#ifndef RECSYS_SERVER_MODELS_COMPARER_H_
#define RECSYS_SERVER_MODELS_COMPARER_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "recsys/signature.h"
#include "server/core/hosted.h"
#include "server/core/request.h"

namespace recsys {

/// For each output of one version where the other has the same; none where their names or shapes
/// differ.
using OutputOrder = std::optional<std::vector<std::size_t>>;

/// Where `other` has the outputs of `expected`.
OutputOrder MatchOutputs(const Signature& expected, const Signature& other);

/// Whether two versions gave the same answer: outputs of the same names and shapes, and values that
/// differ by no more than 1e-6 + 1e-4 * |expected|. NaN is the same as NaN, and an infinity as the
/// same infinity.
bool SameRows(const Rows& expected, const Rows& got, const OutputOrder& order);

/// Compares pairs of answers in a thread of its own, which starts with the first pair. Thread-safe.
class Comparer {
 public:
  /// Two answers to one request. `order` lives as long as `owner`.
  struct Pair {
    Rows expected;
    Rows got;
    const OutputOrder* order = nullptr;
    /// Whose metrics count the result.
    std::shared_ptr<Hosted> shadow;
    std::shared_ptr<const void> owner;
  };

  Comparer() = default;
  ~Comparer();
  Comparer(const Comparer&) = delete;
  Comparer& operator=(const Comparer&) = delete;

  /// Has a pair compared, and the result counted; never waits. Where too many wait, it is dropped
  /// and counted so.
  void Compare(Pair pair);
  /// Compares what waits, and ends the thread; idempotent. Blocks. What comes later is dropped.
  void Close();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Pair> pairs_;
  bool is_closed_ = false;
  std::thread thread_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_COMPARER_H_
