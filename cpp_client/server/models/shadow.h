#ifndef RECSYS_SERVER_MODELS_SHADOW_H_
#define RECSYS_SERVER_MODELS_SHADOW_H_

// Shadow traffic (serve/shadow.py): a second version computes requests whose answers a first one
// gives; both answers are compared. The version that answers notices nothing of it: the shadow gets
// the request at the lowest priority, in a queue of its own, and is left out where that is full;
// answers are compared in a thread of their own, and dropped.

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/core/gateway.h"
#include "server/core/hosted.h"
#include "server/models/comparer.h"
#include "server/models/route_table.h"

namespace recsys {

/// A version that computes in the shadow of others. Thread-safe; does not change.
class VersionShadow : public Shadow, public std::enable_shared_from_this<VersionShadow> {
 public:
  /// `versions`: those that may answer beside it.
  VersionShadow(std::shared_ptr<Hosted> hosted, std::shared_ptr<Comparer> comparer,
                const HostedMap& versions);

  std::shared_ptr<Twin> Begin(const Request& request, const Hosted& primary) override;
  void Submit(const std::shared_ptr<Twin>& twin) override;

  const std::shared_ptr<Hosted>& hosted() const { return hosted_; }
  Comparer& comparer() const { return *comparer_; }
  /// Whether it is the same version beside the same others.
  bool IsFor(const std::shared_ptr<Hosted>& hosted, const HostedMap& versions) const;

 private:
  friend class TwinRequest;
  /// What it has in common with a version that answers.
  struct Likeness {
    /// Whether both make the same of every request, so that it need not be checked twice.
    bool checks_alike = false;
    OutputOrder outputs;
  };

  const std::shared_ptr<Hosted> hosted_;
  const std::shared_ptr<Comparer> comparer_;
  /// By version; names alone, so that a shadow keeps no other version in memory.
  std::map<std::string, Likeness, std::less<>> likenesses_;
};

/// One request on its second way. Counted with the shadow's metrics: kSame and kDifferent where
/// both versions answered; kFailed where the shadow refused the request (as wrong for its
/// signature) or failed on it; kDropped where its queue was full. Where the version that answers
/// failed there is nothing to compare, and nothing is counted.
///
/// As a Request it is the shadow's; as a Twin it belongs to the request of the version that
/// answers.
class TwinRequest : public Request, public Twin {
 public:
  TwinRequest(std::shared_ptr<const VersionShadow> shadow, const VersionShadow::Likeness& likeness);

  void Read(const Hosted& hosted) override;
  Message Encode(const Hosted& hosted, const Rows& rows) override;
  void Done(const Status& status, Message answer) override;
  void Answered(const Hosted& hosted, const Rows& rows) override;

  /// Whether the shadow's own checks come first.
  bool is_unchecked() const { return !likeness_.checks_alike; }

 private:
  enum Side { kPrimary = 0, kShadow = 1 };
  /// Compares once both are there.
  void Arrived(Side side, const Rows& rows);

  const std::shared_ptr<const VersionShadow> shadow_;
  const VersionShadow::Likeness& likeness_;
  std::mutex mutex_;
  std::array<std::optional<Rows>, 2> rows_;
};

/// Whether two checks make the same of every request.
bool AreAlike(const RequestChecker& a, const RequestChecker& b);

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_SHADOW_H_
