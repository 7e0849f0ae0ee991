#include "engine/core/shadow.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "engine/core/executor/executor.h"
#include "recsys/error.h"

namespace recsys {
namespace {

template <typename T, typename Same>
bool AllSame(const std::vector<T>& a, const std::vector<T>& b, Same same) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
}

bool SameSparse(const SparseInput& a, const SparseInput& b) {
  return a.name == b.name && a.pooling == b.pooling && a.weighted == b.weighted &&
         a.strings == b.strings &&
         AllSame(a.tables, b.tables, [](const TableUse& x, const TableUse& y) {
           return x.name == y.name && x.num_embeddings == y.num_embeddings &&
                  x.id_policy == y.id_policy;
         });
}

bool SameInputs(const Signature& a, const Signature& b) {
  return a.context == b.context && AllSame(a.sparse, b.sparse, SameSparse) &&
         AllSame(a.dense, b.dense, [](const DenseInput& x, const DenseInput& y) {
           return x.name == y.name && x.width == y.width && x.missing == y.missing;
         });
}

/// Whether two checkers treat every request the same.
bool AreAlike(const RequestChecker& a, const RequestChecker& b) {
  return a.limits().max_rows == b.limits().max_rows && a.limits().max_ids == b.limits().max_ids &&
         a.limits().max_bytes == b.limits().max_bytes &&
         a.allow_non_finite() == b.allow_non_finite() && SameInputs(a.signature(), b.signature());
}

std::int64_t BytesOf(const OutputCopies& outputs) {
  std::int64_t sum = 0;
  for (const std::string& values : outputs) sum += static_cast<std::int64_t>(values.size());
  return sum;
}

}  // namespace

std::int64_t ShadowEvent::num_bytes() const { return BytesOf(expected) + BytesOf(got); }

Shadow::Shadow(std::shared_ptr<Servable> servable,
               const std::vector<std::shared_ptr<Servable>>& others, TakeShadowEvent take)
    : servable_(std::move(servable)), take_(std::move(take)) {
  for (const std::shared_ptr<Servable>& other : others) {
    if (other == servable_) continue;
    checks_alike_[other->version()] = AreAlike(other->checker(), servable_->checker());
  }
}

std::shared_ptr<ShadowRequest> Shadow::Begin(const Request& request,
                                             const Servable& primary) const {
  const auto found = checks_alike_.find(primary.version());
  if (found == checks_alike_.end()) return nullptr;
  auto copy = std::make_shared<ShadowRequest>(shared_from_this(), primary, found->second);
  copy->payload = request.payload;
  copy->num_bytes = request.num_bytes;
  copy->protocol = request.protocol;
  copy->request_id = request.request_id;
  copy->started_s = request.started_s;
  if (copy->is_checked()) {
    copy->checked = request.checked;
  } else {
    copy->raw = request.raw;
  }
  return copy;
}

void Shadow::Submit(const std::shared_ptr<ShadowRequest>& request) const {
  try {
    if (!request->is_checked()) servable_->checker().Check(request->raw, &request->checked);
    request->servable = servable_;
    servable_->executor().Submit(request);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kQueueFull || error.kind() == ErrorKind::kDraining) {
      servable_->metrics().ShadowDropped();
    } else {
      servable_->metrics().ShadowFailed();
    }
  } catch (const std::exception& error) {
    Log(LogLevel::kError, std::string("a request could not reach the shadow: ") + error.what());
    servable_->metrics().ShadowFailed();
  }
}

ShadowRequest::ShadowRequest(std::shared_ptr<const Shadow> by, const Servable& primary,
                             bool is_checked)
    : shadow_(std::move(by)), primary_version_(primary.version()), is_checked_(is_checked) {
  priority = Priority::kLow;
}

Message ShadowRequest::Encode(const Servable&, const Rows& rows) {
  Arrived(kShadow, rows);
  return {};
}

void ShadowRequest::Done(const Status& status, Message) {
  if (status.code == StatusCode::kResourceExhausted) {
    shadow_->servable()->metrics().ShadowDropped();
  } else if (!status.ok()) {
    Failed();
  }
}

void ShadowRequest::Failed() { shadow_->servable()->metrics().ShadowFailed(); }

void ShadowRequest::Arrived(Side side, const Rows& rows) {
  // Copies: views would keep the outputs of two whole batches alive while the pair waits.
  OutputCopies copies(rows.values.begin(), rows.values.end());
  ShadowEvent pair;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    outputs_[side] = std::move(copies);
    if (!outputs_[kPrimary] || !outputs_[kShadow]) return;
    pair.expected = std::move(*outputs_[kPrimary]);
    pair.got = std::move(*outputs_[kShadow]);
  }
  const Servable& second = *shadow_->servable();
  pair.model = second.name();
  pair.version = primary_version_;
  pair.shadow = second.version();
  pair.request_id = request_id;
  pair.num_rows = rows.num_rows;
  if (!shadow_->take()(std::move(pair))) shadow_->servable()->metrics().ShadowDropped();
}

}  // namespace recsys
