#ifndef RECSYS_ENGINE_CORE_CUT_REQUEST_H_
#define RECSYS_ENGINE_CORE_CUT_REQUEST_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/core/queue/policy.h"
#include "recsys/model.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// Returns the rows from `begin` to `end` of a request, as views of the same bytes. A context stays
/// whole.
CheckedRequest RowsOf(const CheckedRequest& request, const Signature& signature, std::int64_t begin,
                      std::int64_t end);

/// Returns how many IDs a request's context has, which each of its parts has too.
std::int64_t NumContextIds(const CheckedRequest& request);

/// A request whose rows are cut into parts, which several threads compute: the thread that answers
/// it, and those that are free for it in time. Thread-safe.
///
/// If the parts share a context, the first one computes it, and the others can be claimed after
/// that: no thread waits for it. They compute it themselves if the first one has ended without.
class CutRequest final : private SharedContext {
 public:
  /// One part and what became of it.
  struct Part {
    CheckedRequest checked;
    Outputs outputs;
    std::exception_ptr failure;
    /// Time that it has taken; 0 if it was not computed.
    double seconds = 0;
    /// Whether another part had computed its context.
    bool has_context_values = false;
  };

  /// `request`, whose batch must not be one request, must outlive it.
  CutRequest(const CheckedRequest& request, const Signature& signature, int num_parts);

  /// Makes the parts share their context; to be called before the first one is claimed. The thread
  /// that computes it calls `on_free`, without a lock, when the others can be claimed; never if it
  /// fails before.
  void ShareContext(std::function<void()> on_free);
  /// What the batches of the parts share; null for nothing.
  SharedContext* shared() { return on_free_ == nullptr ? nullptr : this; }

  /// Whether a thread may claim a part that is not the first one.
  bool has_unclaimed() const;
  /// Returns the next part, which the caller computes and then passes to Done; null if there is
  /// none left, or one has failed. The first call is that of the thread that answers the request.
  Part* Claim();
  void Done(Part* part);
  /// Waits until all parts that were claimed are done. Nobody can claim one afterwards.
  void WaitUntilDone();
  /// After WaitUntilDone: the outputs of all rows. Throws what the first part has thrown that
  /// failed.
  Outputs Joined() const;
  const std::vector<Part>& parts() const { return parts_; }

 private:
  Values Find() const override;
  void Add(Values values) override;
  /// Lets all parts be claimed.
  void Free(Values values);

  const Signature& signature_;
  std::vector<Part> parts_;
  std::function<void()> on_free_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::size_t num_claimed_ = 0;
  std::size_t num_done_ = 0;
  bool is_closed_ = false;
  /// Whether only the first part can be claimed: its context is still to be computed.
  bool is_held_ = false;
  Values context_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_CUT_REQUEST_H_
