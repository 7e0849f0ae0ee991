// The engine's events for its owner: none is lost, whenever it is added.

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>
#include <utility>

#include "engine/records.h"

namespace recsys {
namespace {

/// Takes records when their file becomes readable, as an event loop does. Returns the number of
/// answers, which is less than `num_wanted` if the file stays unreadable while some are left.
std::int64_t TakeAnswers(Records* records, std::int64_t num_wanted) {
  std::int64_t num_taken = 0;
  while (num_taken < num_wanted) {
    pollfd file{records->event_fd(), POLLIN, 0};
    if (poll(&file, 1, 2000) <= 0) return num_taken;
    num_taken += static_cast<std::int64_t>(records->Take(4).size());
  }
  return num_taken;
}

TEST(Records, WakeTheOwnerForEachEvent) {
  constexpr std::int64_t kNumEvents = 300'000, kNumThreads = 2;
  Records records{EngineSettings{}};
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&records] {
      for (std::int64_t ticket = 0; ticket < kNumEvents; ++ticket) {
        AnswerEvent event;
        event.ticket = ticket;
        records.Add(std::move(event));
        // Lets the owner run out of events now and then.
        if (ticket % 8 == 0) std::this_thread::yield();
      }
    });
  }
  EXPECT_EQ(TakeAnswers(&records, kNumEvents * kNumThreads), kNumEvents * kNumThreads);
  for (std::thread& thread : threads) thread.join();
}

class Unread : public Request {
 public:
  void Read(const Servable&) override {}
  Message Encode(const Servable&, const Rows&) override { return {}; }
  void Done(const Status&, Message) override {}
};

std::vector<EndedEvent> TakeEnded(Records* records) {
  std::vector<EndedEvent> ended;
  for (Event& event : records->Take(10'000))
    ended.push_back(std::get<EndedEvent>(std::move(event)));
  return ended;
}

TEST(Records, AFloodOfRefusalsIsNoFloodOfRecords) {
  double now_s = 5;
  Records records{EngineSettings{}, [&now_s] { return now_s; }};
  const Status refused{StatusCode::kInvalidArgument, "no", 0};
  for (int i = 0; i < 1000; ++i) records.Ended(Unread(), refused);
  EXPECT_EQ(TakeEnded(&records).size(), 100);
  now_s += 1;
  records.Ended(Unread(), refused);
  records.Ended(Unread(), refused);
  const std::vector<EndedEvent> later = TakeEnded(&records);
  ASSERT_EQ(later.size(), 2);
  EXPECT_EQ(later[0].num_left_out, 900);
  EXPECT_EQ(later[1].num_left_out, 0);
}

TEST(Records, ALogOfAllRequestsHasTheGoodOnesOfAFlood) {
  EngineSettings settings;
  settings.ended = "all";
  Records records{settings, [] { return 5.0; }};
  for (int i = 0; i < 200; ++i) {
    records.Ended(Unread(), {});
    records.Ended(Unread(), {StatusCode::kInvalidArgument, "no", 0});
  }
  EXPECT_EQ(TakeEnded(&records).size(), 300);
}

class Named : public Unread {
 public:
  explicit Named(const std::string& id) { request_id = id; }
};

TEST(Records, AShareOfAnswersIsChosenByTheHashOfTheirIds) {
  EngineSettings settings;
  Records none{settings};
  Named visit("visit-1");
  EXPECT_FALSE(none.KeepsAnswer(visit));
  settings.answered_share = 0.5;
  settings.inputs_share = 0.25;
  Records half{settings};
  int num_kept = 0;
  for (int i = 0; i < 1000; ++i) {
    Named one("visit-" + std::to_string(i));
    num_kept += half.KeepsAnswer(one) ? 1 : 0;
    EXPECT_EQ(one.answered_draw < 0.5, half.KeepsAnswer(one));
    EXPECT_EQ(one.answered_draw < 0.25, one.keeps_inputs);
  }
  EXPECT_NEAR(num_kept, 500, 80);
  // Without an ID it is kept only with its inputs.
  for (int i = 0; i < 100; ++i) {
    Named nameless("");
    EXPECT_EQ(half.KeepsAnswer(nameless), nameless.keeps_inputs);
  }
  // As draw_of in serve/engine/records.py.
  half.KeepsAnswer(visit);
  EXPECT_DOUBLE_EQ(visit.answered_draw, 0.31119646980888427);
}

}  // namespace
}  // namespace recsys
