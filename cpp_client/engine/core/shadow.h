#ifndef RECSYS_ENGINE_CORE_SHADOW_H_
#define RECSYS_ENGINE_CORE_SHADOW_H_

// Shadow traffic: a second version computes requests that a first one answers, and both outputs are
// compared. The answering version is not affected: the shadow gets the request at the lowest
// priority, in its own queue, and skips it if that is full.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/request.h"
#include "engine/core/servable.h"

namespace recsys {

/// One request's outputs from the answering version and from the shadow, for the engine's owner.
/// Owns its memory.
struct ShadowEvent {
  std::string model;
  std::string version;
  std::string shadow;
  /// The client's own name for the request; empty for none.
  std::string request_id;
  std::int64_t num_rows = 0;
  OutputCopies expected;
  OutputCopies got;

  std::int64_t num_bytes() const;
};

/// Receives pairs from executors' threads; returns false if there is no room. Must be fast and must
/// not throw.
using TakeShadowEvent = std::function<bool(ShadowEvent)>;

/// A version that computes in the shadow of others. Thread-safe; immutable.
class Shadow : public std::enable_shared_from_this<Shadow> {
 public:
  /// `others`: the versions that may answer while this one shadows them.
  Shadow(std::shared_ptr<Servable> servable, const std::vector<std::shared_ptr<Servable>>& others,
         TakeShadowEvent take);

  /// Returns the shadow's copy of a request that `primary` is about to take; null if `primary` is
  /// not one of the others. Call it before the request joins its queue.
  std::shared_ptr<ShadowRequest> Begin(const Request& request, const Servable& primary) const;
  /// Queues the copy of an accepted request at the shadow. Never throws.
  void Submit(const std::shared_ptr<ShadowRequest>& request) const;

  const std::shared_ptr<Servable>& servable() const { return servable_; }
  const TakeShadowEvent& take() const { return take_; }

 private:
  const std::shared_ptr<Servable> servable_;
  /// By version of the others: whether their checks treat every request the same, so that it need
  /// not be checked twice.
  std::map<std::string, bool, std::less<>> checks_alike_;
  const TakeShadowEvent take_;
};

/// The shadow's copy of one request. The shadow's counters count it as failed if the shadow refused
/// it (as not matching its signature) or failed on it, and as dropped if there was no room for it.
/// If the answering version failed, there is nothing to compare, and nothing is counted.
class ShadowRequest final : public Request {
 public:
  ShadowRequest(std::shared_ptr<const Shadow> by, const Servable& primary, bool is_checked);

  void Read(const Servable&) override {}
  Message Encode(const Servable& servable, const Rows& rows) override;
  void Done(const Status& status, Message answer) override;

  const Shadow& by() const { return *shadow_; }
  /// Passes the rows of the answering version, in its executor's thread.
  void PrimaryAnswered(const Rows& rows) { Arrived(kPrimary, rows); }
  void Failed();
  /// Whether `checked` is set, because both versions' checks are alike.
  bool is_checked() const { return is_checked_; }

 private:
  enum Side { kPrimary = 0, kShadow = 1 };
  /// Copies the rows; passes the pair on once both are there.
  void Arrived(Side side, const Rows& rows);

  const std::shared_ptr<const Shadow> shadow_;
  const std::string primary_version_;
  const bool is_checked_;
  std::mutex mutex_;
  std::array<std::optional<OutputCopies>, 2> outputs_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_SHADOW_H_
