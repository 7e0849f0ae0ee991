// What a request over HTTP keeps, and for how long.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "recsys/error.h"
#include "server/core/hosted.h"
#include "server/http/json_value.h"
#include "server/http/rest_request.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxJsonBytes = 1 << 20;

class PriceModel : public ServedModel {
 public:
  PriceModel() {
    signature_.dense = {{"price", 2}};
    signature_.outputs = {{"score", {}}};
  }
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "cpu"; }
  Outputs Predict(const Batch& /*batch*/) override { return {}; }
  Delta PrepareDelta(const std::string& /*path*/) override { return {}; }

 private:
  Signature signature_;
};

class NoModel : public Router {
 public:
  Route Find(std::string_view, std::string_view, double) const override {
    throw Error(ErrorKind::kNotReady, "not ready yet");
  }
};

class RestTwins : public testing::Test {
 protected:
  RestTwins() {
    OpenedModel opened;
    opened.model = std::make_unique<PriceModel>();
    hosted_ = std::make_shared<Hosted>(std::move(opened), ModelSettings(), metrics_,
                                       [](Request&, const Status&, Message) {});
  }

  /// That the inputs are there for who has the payload alone, as twins do.
  void ExpectInputsOutlive(std::shared_ptr<RestRequest> request) {
    request->Read(*hosted_);
    const Bytes payload = request->payload;
    const RawRequest raw = request->raw;
    request.reset();
    ASSERT_NE(payload.owner, nullptr);
    const float price[] = {1.0F, 2.0F, 0.5F, 4.0F};
    EXPECT_EQ(raw.dense.at(0).values,
              std::string_view(reinterpret_cast<const char*>(price), sizeof(price)));
  }
  std::shared_ptr<HttpExchange> Exchange() {
    return std::make_shared<HttpExchange>(HttpRequest(), std::make_shared<HttpMailbox>(), 1, 1);
  }

  Metrics metrics_;
  NoModel router_;
  Gateway gateway_{router_, metrics_, {}};
  std::shared_ptr<Hosted> hosted_;
};

TEST_F(RestTwins, TensorsLiveAsLongAsThePayload) {
  auto body = std::make_unique<InferBody>(
      R"({"inputs":[{"name":"price","datatype":"FP32","shape":[2,2],"data":[1,2,0.5,4]}]})",
      std::nullopt, kMaxJsonBytes);
  ExpectInputsOutlive(
      std::make_shared<InferRestRequest>(gateway_, Exchange(), RestRoute(), std::move(body)));
}

TEST_F(RestTwins, PlainInputsLiveAsLongAsThePayload) {
  ExpectInputsOutlive(std::make_shared<PlainRestRequest>(
      gateway_, Exchange(), RestRoute(),
      ParseJsonBody(R"({"dense":{"price":[[1,2],[0.5,4]]}})", kMaxJsonBytes)));
}

}  // namespace
}  // namespace recsys
