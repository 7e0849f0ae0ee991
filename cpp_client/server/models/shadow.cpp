#include "server/models/shadow.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "recsys/error.h"

namespace recsys {
namespace {

template <typename T, typename Same>
bool AllSame(const std::vector<T>& a, const std::vector<T>& b, Same same) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
}

bool SameSparse(const SparseInput& a, const SparseInput& b) {
  return a.name == b.name && a.pooling == b.pooling && a.weighted == b.weighted &&
         AllSame(a.tables, b.tables, [](const TableUse& x, const TableUse& y) {
           return x.name == y.name && x.num_embeddings == y.num_embeddings &&
                  x.id_policy == y.id_policy;
         });
}

bool SameSignature(const Signature& a, const Signature& b) {
  return a.context == b.context && AllSame(a.sparse, b.sparse, SameSparse) &&
         AllSame(a.dense, b.dense,
                 [](const DenseInput& x, const DenseInput& y) {
                   return x.name == y.name && x.width == y.width;
                 }) &&
         AllSame(a.outputs, b.outputs, [](const Output& x, const Output& y) {
           return x.name == y.name && x.shape == y.shape;
         });
}

}  // namespace

bool AreAlike(const RequestChecker& a, const RequestChecker& b) {
  return a.limits().max_rows == b.limits().max_rows && a.limits().max_ids == b.limits().max_ids &&
         a.limits().max_bytes == b.limits().max_bytes &&
         a.allow_non_finite() == b.allow_non_finite() &&
         SameSignature(a.signature(), b.signature());
}

VersionShadow::VersionShadow(std::shared_ptr<Hosted> hosted, std::shared_ptr<Comparer> comparer,
                             const HostedMap& versions)
    : hosted_(std::move(hosted)), comparer_(std::move(comparer)) {
  for (const auto& [version, other] : versions) {
    likenesses_[version] = {AreAlike(other->checker(), hosted_->checker()),
                            MatchOutputs(other->signature(), hosted_->signature())};
  }
}

bool VersionShadow::IsFor(const std::shared_ptr<Hosted>& hosted, const HostedMap& versions) const {
  return hosted == hosted_ && versions.size() == likenesses_.size() &&
         std::equal(versions.begin(), versions.end(), likenesses_.begin(),
                    [](const auto& one, const auto& known) { return one.first == known.first; });
}

std::shared_ptr<Twin> VersionShadow::Begin(const Request& request, const Hosted& primary) {
  const auto likeness = likenesses_.find(primary.version());
  if (likeness == likenesses_.end()) return nullptr;
  auto twin = std::make_shared<TwinRequest>(shared_from_this(), likeness->second);
  twin->payload = request.payload;
  twin->num_bytes = request.num_bytes;
  twin->protocol = request.protocol;
  twin->started_s = request.started_s;
  if (twin->is_unchecked()) {
    twin->raw = request.raw;
  } else {
    twin->checked = request.checked;
  }
  return twin;
}

void VersionShadow::Submit(const std::shared_ptr<Twin>& twin) {
  const auto request = std::static_pointer_cast<TwinRequest>(twin);
  try {
    if (request->is_unchecked()) hosted_->checker().Check(request->raw, &request->checked);
    request->hosted = hosted_;
    hosted_->Submit(request);
  } catch (const Error& error) {
    const bool has_no_room =
        error.kind() == ErrorKind::kQueueFull || error.kind() == ErrorKind::kDraining;
    hosted_->metrics().CountShadow(has_no_room ? ShadowResult::kDropped : ShadowResult::kFailed);
  } catch (const std::exception& error) {
    Log(LogLevel::kError, std::string("a request's twin could not be made: ") + error.what());
    hosted_->metrics().CountShadow(ShadowResult::kFailed);
  }
}

TwinRequest::TwinRequest(std::shared_ptr<const VersionShadow> shadow,
                         const VersionShadow::Likeness& likeness)
    : shadow_(std::move(shadow)), likeness_(likeness) {
  priority = Priority::kLow;
}

void TwinRequest::Read(const Hosted&) {}

Message TwinRequest::Encode(const Hosted&, const Rows& rows) {
  Arrived(kShadow, rows);
  return {};
}

void TwinRequest::Done(const Status& status, Message) {
  if (!status.ok()) shadow_->hosted()->metrics().CountShadow(ShadowResult::kFailed);
}

void TwinRequest::Answered(const Hosted&, const Rows& rows) { Arrived(kPrimary, rows); }

void TwinRequest::Arrived(Side side, const Rows& rows) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    rows_[side] = rows;
    if (!rows_[kPrimary] || !rows_[kShadow]) return;
  }
  shadow_->comparer().Compare({std::move(*rows_[kPrimary]), std::move(*rows_[kShadow]),
                               &likeness_.outputs, shadow_->hosted(), shadow_});
}

}  // namespace recsys
