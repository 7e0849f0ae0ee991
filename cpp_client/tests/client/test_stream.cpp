#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/fake_server.h"

namespace recsys {
namespace {

/// What a stream's callback was given, by request.
class Answers {
 public:
  Client::StreamCallback callback() {
    return [this](const std::string& request_id, ClientResult result) {
      const std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_TRUE(by_id_.emplace(request_id, std::move(result)).second) << request_id << " twice";
    };
  }
  const ClientResult& at(const std::string& request_id) const { return by_id_.at(request_id); }
  std::size_t size() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return by_id_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ClientResult> by_id_;
};

ClientRequest Named(const std::string& request_id, std::int64_t num_rows = 1) {
  return RowsOf(num_rows).SetRequestId(request_id);
}

/// Reads everything, then answers the last request first; "bad" ones with an error.
grpc::Status LastFirst(grpc::ServerContext*, FakeService::Stream* stream) {
  std::vector<v1::PredictRequest> requests;
  for (v1::PredictRequest request; stream->Read(&request);) requests.push_back(request);
  std::reverse(requests.begin(), requests.end());
  for (const v1::PredictRequest& request : requests) {
    v1::StreamResponse response;
    response.set_request_id(request.request_id());
    if (request.request_id() == "bad") {
      response.mutable_error()->set_code(8);
      response.mutable_error()->set_message("the queue is full");
      response.mutable_error()->set_retry_after_ms(40);
    } else {
      FakeService::Score(request, response.mutable_response());
    }
    stream->Write(response);
  }
  return grpc::Status::OK;
}

std::optional<ClientError> Finish(ClientStream* stream) {
  try {
    stream->Finish();
  } catch (const ClientError& error) {
    return error;
  }
  return std::nullopt;
}

TEST(ClientStream, AnswersEachRequestOnceInAnyOrder) {
  FakeServer server;
  server.service.on_stream = LastFirst;
  Client client(server.address());
  Answers answers;
  const auto stream = client.Stream(answers.callback());
  for (int i = 1; i <= 100; ++i) stream->Send(Named(std::to_string(i), i));
  EXPECT_FALSE(Finish(stream.get()));
  ASSERT_EQ(answers.size(), 100U);
  for (int i = 1; i <= 100; ++i) {
    const auto& output = answers.at(std::to_string(i)).response().output("score");
    EXPECT_EQ(output.values.size(), static_cast<std::size_t>(i));
  }
}

TEST(ClientStream, ARequestThatFailsEndsNothingButItself) {
  FakeServer server;
  server.service.on_stream = LastFirst;
  Client client(server.address());
  Answers answers;
  const auto stream = client.Stream(answers.callback());
  for (const char* name : {"a", "bad", "c"}) stream->Send(Named(name));
  EXPECT_FALSE(Finish(stream.get()));
  EXPECT_TRUE(answers.at("a").ok());
  EXPECT_TRUE(answers.at("c").ok());
  ASSERT_FALSE(answers.at("bad").ok());
  EXPECT_EQ(answers.at("bad").error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(answers.at("bad").error().message(), "the queue is full");
  EXPECT_EQ(answers.at("bad").error().retry_after_ms(), 40);
}

TEST(ClientStream, WhatAServerLeavesUnansweredFailsWithTheStream) {
  FakeServer server;
  server.service.on_stream = [](grpc::ServerContext*, FakeService::Stream* stream) {
    v1::PredictRequest request;
    stream->Read(&request);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is stopping");
  };
  Client client(server.address());
  Answers answers;
  const auto stream = client.Stream(answers.callback());
  stream->Send(Named("a"));
  const auto error = Finish(stream.get());
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message(), "the server is stopping");
  EXPECT_EQ(answers.at("a").error().code(), StatusCode::kUnavailable);
}

TEST(ClientStream, AStreamThatEndsWellStillOwesItsAnswers) {
  FakeServer server;
  server.service.on_stream = [](grpc::ServerContext*, FakeService::Stream* stream) {
    v1::PredictRequest request;
    stream->Read(&request);
    v1::StreamResponse unasked;
    unasked.set_request_id("of somebody else");
    stream->Write(unasked);
    return grpc::Status::OK;
  };
  Client client(server.address());
  Answers answers;
  const auto stream = client.Stream(answers.callback());
  stream->Send(Named("a"));
  ASSERT_TRUE(Finish(stream.get()));
  EXPECT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers.at("a").error().message(), "the server ended the stream before it answered");
}

TEST(ClientStream, TakesOnlyRequestsThatItCanTellApart) {
  FakeServer server;
  server.service.on_stream = LastFirst;
  Client client(server.address());
  Answers answers;
  const auto stream = client.Stream(answers.callback());
  stream->Send(Named("a"));
  EXPECT_THROW(stream->Send(Named("a")), Error);
  EXPECT_THROW(stream->Send(RowsOf(1)), Error);
  EXPECT_FALSE(Finish(stream.get()));
  EXPECT_THROW(stream->Send(Named("b")), Error) << "after Finish";
  EXPECT_EQ(answers.size(), 1U);
}

grpc::Status ReadUntilGone(grpc::ServerContext*, FakeService::Stream* stream) {
  for (v1::PredictRequest request; stream->Read(&request);) {
  }
  return grpc::Status::OK;
}

TEST(ClientStream, CancelAnswersWhatIsUnanswered) {
  FakeServer server;
  server.service.on_stream = ReadUntilGone;
  Client client(server.address());
  for (const bool by_token : {false, true}) {
    Answers answers;
    const auto cancellation = std::make_shared<Cancellation>();
    const auto stream = client.Stream(answers.callback(), {std::nullopt, cancellation});
    stream->Send(Named("a"));
    if (by_token) {
      cancellation->Cancel();
    } else {
      stream->Cancel();
    }
    EXPECT_EQ(Finish(stream.get())->message(), "cancelled by the caller");
    EXPECT_EQ(answers.at("a").error().code(), StatusCode::kCancelled);
  }
}

TEST(ClientStream, ItsEndAnswersWhatIsUnanswered) {
  FakeServer server;
  server.service.on_stream = ReadUntilGone;
  Client client(server.address());
  Answers answers;
  client.Stream(answers.callback())->Send(Named("a"));
  EXPECT_EQ(answers.at("a").error().code(), StatusCode::kCancelled);
}

TEST(ClientStream, TheClientsEndAnswersWhatIsUnanswered) {
  FakeServer server;
  server.service.on_stream = ReadUntilGone;
  Answers answers;
  std::optional<Client> client(server.address());
  const auto stream = client->Stream(answers.callback());
  stream->Send(Named("a"));
  client.reset();
  EXPECT_EQ(answers.at("a").error().code(), StatusCode::kCancelled);
  EXPECT_THROW(stream->Send(Named("b")), ClientError);
}

TEST(ClientStream, HoldsABoundedNumberOfBytesForAServerThatDoesNotRead) {
  FakeServer server;
  server.service.on_stream = [](grpc::ServerContext* context, FakeService::Stream*) {
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  };
  ClientOptions options;
  options.max_stream_bytes = 1 << 20;
  Client client(server.address(), options);
  Answers answers;
  const auto stream = client.Stream(answers.callback());
  int num_sent = 0;
  try {
    for (; num_sent < 1000; ++num_sent) {
      ClientRequest request(1);
      request.AddDense("d", std::vector<float>(25'000)).SetRequestId(std::to_string(num_sent));
      stream->Send(request);
    }
    FAIL() << "1000 requests of 100 KB were taken";
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), StatusCode::kResourceExhausted);
  }
  EXPECT_GE(num_sent, 10);
  stream->Cancel();
}

TEST(ClientStream, HasADeadlineOfItsOwn) {
  FakeServer server;
  server.service.on_stream = [](grpc::ServerContext* context, FakeService::Stream* stream) {
    ReadUntilGone(context, stream);
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  };
  Client client(server.address());
  Answers answers;
  const auto stream = client.Stream(answers.callback(), {0.05, nullptr});
  stream->Send(Named("a"));
  EXPECT_EQ(Finish(stream.get())->code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(answers.at("a").error().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace recsys
