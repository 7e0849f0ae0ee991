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

#include "recsys/error.h"
#include "server/core/gateway.h"
#include "server/core/hosted.h"
#include "tests/protocols/fake_calls.h"
#include "tests/wire/messages.h"

namespace recsys {

/// score[b]: the row's dense numbers and IDs, summed; vectors: that times 1 to 6.
class SummingModel : public ServedModel {
 public:
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "cpu"; }
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
  Route Find(std::string_view model, std::string_view version, double draw) const override;
  std::shared_ptr<Hosted> hosted;
};

/// What it counts stands in `metrics_`.
class ServedTest : public testing::Test {
 protected:
  ServedTest();
  ~ServedTest() override { router_.hosted->Close(); }

  /// Makes a unary call and waits for its end.
  std::pair<Status, std::string> Call(const Service& service, const std::string& method,
                                      const std::string& message, const CallFacts& facts = {});
  std::int64_t Count(const std::string& outcome) { return metrics_.Outcomes()[outcome]; }

  Metrics metrics_;
  SmallRouter router_;
  Gateway gateway_{router_, metrics_, {}};
  SummingModel* model_ = nullptr;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_PROTOCOLS_SERVED_MODEL_H_
