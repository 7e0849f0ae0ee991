#ifndef RECSYS_ENGINE_CORE_CUT_REQUEST_H_
#define RECSYS_ENGINE_CORE_CUT_REQUEST_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
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
class CutRequest {
 public:
  /// One part and what became of it.
  struct Part {
    CheckedRequest checked;
    Outputs outputs;
    std::exception_ptr failure;
    /// Time that it has taken; 0 if it was not computed.
    double seconds = 0;
  };

  /// `request`, whose batch must not be one request, must outlive it.
  CutRequest(const CheckedRequest& request, const Signature& signature, int num_parts);

  /// Whether a thread may still claim a part.
  bool has_unclaimed() const;
  /// Returns the next part, which the caller computes and then passes to Done; null if there is
  /// none left, or one has failed.
  Part* Claim();
  void Done(Part* part);
  /// Waits until all parts that were claimed are done. Nobody can claim one afterwards.
  void WaitUntilDone();
  /// After WaitUntilDone: the outputs of all rows. Throws what the first part has thrown that
  /// failed.
  Outputs Joined() const;
  const std::vector<Part>& parts() const { return parts_; }

 private:
  const Signature& signature_;
  std::vector<Part> parts_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::size_t num_claimed_ = 0;
  std::size_t num_done_ = 0;
  bool is_closed_ = false;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_CUT_REQUEST_H_
