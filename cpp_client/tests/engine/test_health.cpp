// Health without a transport.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "engine/calls/health.h"
#include "tests/protocols/fake_calls.h"

namespace recsys {
namespace {

const std::string kServing = "\x08\x01", kNotServing = "\x08\x02", kUnknown = "\x08\x03";

class HealthTest : public testing::Test {
 protected:
  std::pair<Status, std::string> Check(const std::string& message) {
    const auto call = std::make_shared<FakeUnaryCall>();
    service_.methods.at("Check").unary(call, Bytes::Of(message));
    return call->Wait();
  }
  std::shared_ptr<StreamHandler> Watch(const std::shared_ptr<FakeStreamCall>& call,
                                       const std::string& message = Named("a")) {
    auto handler = service_.methods.at("Watch").stream(call);
    handler->OnMessage(Bytes::Of(message));
    return handler;
  }
  static std::string Named(const std::string& service) {
    return "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  }

  Health health_;
  const Service service_ = health_.MakeService();
};

TEST_F(HealthTest, CheckSaysWhatWasSetAndNotFoundOfTheRest) {
  EXPECT_EQ(Check("").first.code, StatusCode::kNotFound);
  health_.Set("", true);
  health_.Set("a", false);
  EXPECT_EQ(Check("").second, kServing);
  EXPECT_EQ(Check(Named("a")).second, kNotServing);
  EXPECT_EQ(Check(Named("b")).first.code, StatusCode::kNotFound);
}

TEST_F(HealthTest, WatchFollowsAServiceFromBeforeItIsKnown) {
  const auto call = std::make_shared<FakeStreamCall>();
  const auto handler = Watch(call);
  health_.Set("a", true);
  health_.Set("a", true);
  health_.Set("b", false);
  health_.Set("a", false);
  EXPECT_EQ(call->WaitForAnswers(3), (std::vector<std::string>{kUnknown, kServing, kNotServing}));
}

TEST_F(HealthTest, AClientThatDoesNotReadGetsTheNewestStatusOnly) {
  const auto call = std::make_shared<FakeStreamCall>(/*holds_writes=*/true);
  const auto handler = Watch(call);
  for (int i = 0; i < 99; ++i) health_.Set("a", i % 2 == 0);
  EXPECT_EQ(call->WaitForAnswers(1), std::vector<std::string>{kUnknown});
  call->Release();
  EXPECT_EQ(call->WaitForAnswers(2), (std::vector<std::string>{kUnknown, kServing}));
}

TEST_F(HealthTest, AfterShutdownNothingServes) {
  health_.Set("a", true);
  const auto call = std::make_shared<FakeStreamCall>();
  const auto handler = Watch(call);
  health_.Shutdown();
  health_.Set("a", true);
  health_.Set("b", true);
  EXPECT_EQ(call->WaitForAnswers(2), (std::vector<std::string>{kServing, kNotServing}));
  EXPECT_EQ(Check(Named("a")).second, kNotServing);
  EXPECT_EQ(Check(Named("b")).first.code, StatusCode::kNotFound);
}

TEST_F(HealthTest, WatchersThatComeAndGoWhileStatusesChangeCrashNothing) {
  std::thread changing([this] {
    for (int i = 0; i < 2000; ++i) health_.Set("a", i % 2 == 0);
  });
  for (int i = 0; i < 200; ++i) {
    const auto handler = Watch(std::make_shared<FakeStreamCall>());
    if (i % 2 == 0) handler->OnCancelled();
  }
  changing.join();
}

TEST_F(HealthTest, BytesThatAreNoMessageAreRefused) {
  EXPECT_EQ(Check("\xff").first.code, StatusCode::kInternal);
  EXPECT_EQ(Check("\x0a\x02\xff\xfe").first.text, "Exception deserializing request!");
  const auto call = std::make_shared<FakeStreamCall>();
  Watch(call, "\xff");
  EXPECT_EQ(call->WaitForEnd().code, StatusCode::kInternal);
  const auto silent = std::make_shared<FakeStreamCall>();
  service_.methods.at("Watch").stream(silent)->OnHalfClose();
  EXPECT_EQ(silent->WaitForEnd().code, StatusCode::kInternal);
}

}  // namespace
}  // namespace recsys
