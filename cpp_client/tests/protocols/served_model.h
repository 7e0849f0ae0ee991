#ifndef RECSYS_TESTS_PROTOCOLS_SERVED_MODEL_H_
#define RECSYS_TESTS_PROTOCOLS_SERVED_MODEL_H_

// A gateway with a model behind it that answers with sums of what it is given.

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/gateway.h"
#include "engine/core/servable.h"
#include "recsys/error.h"
#include "tests/protocols/fake_calls.h"
#include "tests/wire/messages.h"

namespace recsys {

/// score[b]: the row's dense numbers and IDs, summed; vectors: that times 1 to 6.
class SummingModel : public ServedModel {
 public:
  const Signature& signature() const override { return signature_; }
  Outputs Predict(const Batch& batch) override;
  Delta PrepareDelta(const std::string&) override { return {}; }

  /// Batches of requests wait while it is shut.
  void Shut();
  void Open();

 private:
  const Signature signature_ = SmallSignature();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};

/// Serves one model, "small".
class SmallRouter : public Router {
 public:
  Route Find(const RouteQuery& query) const override;
  std::shared_ptr<Servable> servable;
};

class ServedTest : public testing::Test {
 protected:
  ServedTest();
  ~ServedTest() override { router_.servable->Close(); }

  /// Makes a unary call and waits for its end.
  std::pair<Status, std::string> Call(const Service& service, const std::string& method,
                                      const std::string& message, const CallFacts& facts = {});
  std::int64_t Count(Outcome outcome) const {
    return gateway_.unrouted()[static_cast<std::size_t>(outcome)] +
           router_.servable->metrics().Totals().of(outcome);
  }

  SmallRouter router_;
  Gateway gateway_{router_, nullptr};
  SummingModel* model_ = nullptr;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_PROTOCOLS_SERVED_MODEL_H_
