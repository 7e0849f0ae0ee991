#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/core/queue/deadlines.h"
#include "tests/core/allocations.h"
#include "tests/core/queue/queue_parts.h"

namespace recsys {
namespace {

using Kept = std::vector<std::shared_ptr<Waiting>>;

std::string Passed(Deadlines& deadlines) {
  std::string names;
  while (Request* const first = deadlines.First()) {
    names += first->request_id;
    deadlines.Remove(*first);
  }
  return names;
}

TEST(Deadlines, TheEarliestIsFirst) {
  const auto a = Wait("a"), b = Wait("b"), c = Wait("c");
  Deadlines deadlines;
  EXPECT_EQ(deadlines.first_s(), kNever);
  EXPECT_EQ(deadlines.First(), nullptr);
  deadlines.Add(*a, 2);
  deadlines.Add(*b, 3);
  deadlines.Add(*c, 1);
  EXPECT_EQ(deadlines.first_s(), 1);
  EXPECT_EQ(Passed(deadlines), "cab");
  EXPECT_EQ(deadlines.first_s(), kNever);
}

TEST(Deadlines, OfEqualOnesTheFirstAddedIsFirst) {
  const auto a = Wait("a"), b = Wait("b"), c = Wait("c"), d = Wait("d");
  Deadlines deadlines;
  deadlines.Add(*a, 5);
  deadlines.Add(*b, 3);
  deadlines.Remove(*a);
  // The line that was left takes an equal one.
  deadlines.Add(*c, 3);
  deadlines.Add(*d, 3);
  EXPECT_EQ(Passed(deadlines), "bcd");
}

TEST(Deadlines, ThatAscendTakeNoMemory) {
  if (!kCountsAllocations) GTEST_SKIP() << "allocations are not counted";
  Kept kept;
  for (int i = 0; i < 100; ++i) kept.push_back(Wait("r"));
  Deadlines deadlines;
  const std::size_t before = NumAllocations();
  // Two threads read, and two timeouts are used.
  for (int i = 0; i < 100; ++i) deadlines.Add(*kept[i], (i % 2) * 10 + i - (i / 2 % 2) * 5);
  EXPECT_EQ(NumAllocations(), before);
}

TEST(Deadlines, AreInOrderWhateverHappens) {
  std::mt19937 random(7);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  for (int run = 0; run < 50; ++run) {
    Deadlines deadlines;
    // In the order of arrival.
    Kept kept;
    for (int step = 0; step < 300; ++step) {
      const int what = draw(10);
      if (what < 6) {
        const auto request = Wait(std::to_string(step));
        // Some far ahead: the lines end with them.
        request->deadline_s = step / 8 + draw(4) + (draw(run % 12 + 1) > 7 ? 1000 - step : 0);
        deadlines.Add(*request, request->deadline_s);
        kept.push_back(request);
      } else if (!kept.empty()) {
        const auto gone =
            what < 8 ? kept.begin() : kept.begin() + draw(static_cast<int>(kept.size()));
        deadlines.Remove(**gone);
        deadlines.Remove(**gone);
        kept.erase(gone);
      }
      const auto first = std::min_element(
          kept.begin(), kept.end(),
          [](const auto& a, const auto& b) { return a->deadline_s < b->deadline_s; });
      ASSERT_EQ(deadlines.First(), first == kept.end() ? nullptr : first->get());
      ASSERT_EQ(deadlines.first_s(), first == kept.end() ? kNever : (*first)->deadline_s);
    }
  }
}

}  // namespace
}  // namespace recsys
