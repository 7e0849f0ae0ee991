// Answered requests in columns: every row and every request once, whichever thread answers.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/answers/answer_recorder.h"
#include "recsys/request.h"
#include "tests/core/fakes.h"

namespace recsys {
namespace {

template <typename Number>
std::vector<Number> NumbersOf(const Column& column) {
  std::vector<Number> numbers(column.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), column.data(), column.size());
  return numbers;
}

template <typename Number>
std::string_view BytesOf(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

using Offsets = std::vector<std::int32_t>;
using Ids = std::vector<std::int64_t>;
using Marks = std::vector<std::uint8_t>;

class Made : public Request {
 public:
  void Read(const Servable&) override {}
  Message Encode(const Servable&, const Rows&) override { return {}; }
  void Done(const Status&, Message) override {}
};

/// A number, a user of the context, and items by ID or by text.
Signature ShopSignature() {
  Signature signature;
  signature.dense.push_back({"price", 1});
  signature.sparse.push_back({"user", {}, "sum"});
  signature.sparse.push_back({"item", {}, "sum", false, "xxh64"});
  signature.outputs.push_back({"score", {}});
  signature.context = {"user"};
  return signature;
}

class ShopAnswers : public testing::Test {
 protected:
  /// Adds a request with a user for each row, or one for all.
  void Add(const Ids& users, const std::vector<std::string_view>& texts, const Ids& items) {
    const std::size_t num_rows = std::max(texts.size(), items.size());
    const std::vector<float> prices(num_rows, 0.5F), scores(num_rows, 0.25F);
    const Offsets ones(num_rows, 1);
    Made request;
    request.raw.num_rows = static_cast<std::int64_t>(num_rows);
    request.raw.dense.push_back({"price", BytesOf(prices)});
    const RawSparse user{"user", BytesOf(ones).substr(0, 4 * users.size()), BytesOf(users), {}};
    (users.size() < num_rows ? request.raw.context_sparse : request.raw.sparse).push_back(user);
    request.raw.sparse.push_back({"item", BytesOf(ones), BytesOf(items), {}, RawTexts::Of(texts)});
    RequestChecker(ShopSignature(), {100, 100, 1 << 20}).Check(request.raw, &request.checked);
    request.request_id = std::to_string(num_rows);
    request.outputs = BytesOf(scores);
    block_.Add(request, 1.5);
  }

  AnswerBlock block_{std::make_shared<const VersionShape>(ModelInfo{}, ShopSignature()), true};
};

TEST_F(ShopAnswers, HaveWhatIsGivenOnceInTheFirstRow) {
  Add({7, 8}, {}, {1, 2});
  Add({9}, {}, {3, 4, 5});
  const SparseColumns& user = block_.sparse()[0];
  EXPECT_EQ(NumbersOf<std::uint8_t>(user.has), Marks({1, 1, 1, 0, 0}));
  EXPECT_EQ(NumbersOf<std::int32_t>(user.offsets), Offsets({0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(NumbersOf<std::int64_t>(user.values), Ids({7, 8, 9}));
  const SparseColumns& item = block_.sparse()[1];
  EXPECT_TRUE(item.has.empty());
  EXPECT_TRUE(item.text_offsets.empty());
  EXPECT_EQ(NumbersOf<std::int64_t>(item.values), Ids({1, 2, 3, 4, 5}));
  EXPECT_EQ(NumbersOf<float>(block_.dense()[0].values), std::vector<float>(5, 0.5F));
  EXPECT_EQ(NumbersOf<std::int64_t>(block_.requests().num_rows), Ids({2, 3}));
  EXPECT_EQ(NumbersOf<std::int32_t>(block_.requests().id_offsets), Offsets({0, 1, 2}));
  EXPECT_EQ(block_.requests().outputs[0].size(), 20);
}

TEST_F(ShopAnswers, HaveTextsBesideTheIdsThatTheyStandFor) {
  Add({7}, {}, {1});
  Add({8, 8}, {"tea", "milk"}, {});
  Add({9}, {}, {2});
  const SparseColumns& item = block_.sparse()[1];
  EXPECT_EQ(NumbersOf<std::uint8_t>(item.has_texts), Marks({0, 1, 1, 0}));
  EXPECT_EQ(NumbersOf<std::int32_t>(item.text_offsets), Offsets({0, 0, 1, 2, 2}));
  EXPECT_EQ(NumbersOf<std::int32_t>(item.text_ends), Offsets({0, 3, 7}));
  EXPECT_EQ(std::string(item.texts.data(), item.texts.size()), "teamilk");
  EXPECT_EQ(NumbersOf<std::int32_t>(item.offsets), Offsets({0, 1, 2, 3, 4}));
  EXPECT_EQ(NumbersOf<std::int64_t>(item.values).size(), 4);
}

TEST_F(ShopAnswers, OfRequestsWithoutRowsHaveNoInputs) {
  Add({}, {}, {});
  Add({7}, {}, {1});
  EXPECT_EQ(block_.num_requests(), 2);
  EXPECT_EQ(block_.num_rows(), 1);
  EXPECT_EQ(NumbersOf<std::int64_t>(block_.sparse()[0].values), Ids({7}));
}

TEST_F(ShopAnswers, HaveOffsetsFromTheFirstRowOnThatHasNotOneId) {
  Add({7}, {}, {1});
  Add({8}, {}, {2});
  EXPECT_TRUE(block_.sparse()[0].offsets.empty());
  Add({9}, {}, {3, 4});
  Add({5}, {}, {6});
  EXPECT_EQ(NumbersOf<std::int32_t>(block_.sparse()[0].offsets), Offsets({0, 1, 2, 3, 3, 4}));
  EXPECT_EQ(NumbersOf<std::uint8_t>(block_.sparse()[0].has), Marks({1, 1, 1, 0, 1}));
}

TEST_F(ShopAnswers, ThatAreClearedTakeOthers) {
  Add({7}, {}, {1});
  Add({8}, {"tea"}, {});
  Add({9}, {}, {3, 4});
  block_.Clear();
  EXPECT_EQ(block_.num_requests(), 0);
  EXPECT_EQ(block_.num_bytes(), 0);
  Add({5}, {}, {6});
  const SparseColumns& item = block_.sparse()[1];
  EXPECT_TRUE(item.offsets.empty() && item.has.empty() && item.text_offsets.empty());
  EXPECT_EQ(NumbersOf<std::int64_t>(item.values), Ids({6}));
  EXPECT_EQ(NumbersOf<float>(block_.dense()[0].values), std::vector<float>(1, 0.5F));
  EXPECT_EQ(NumbersOf<std::int32_t>(block_.requests().id_offsets), Offsets({0, 1}));
  EXPECT_EQ(block_.requests().protocol_names.size(), 1);
}

TEST(BlockPool, GivesBackTheMemoryOfBlocksThatAreDropped) {
  const auto shape = std::make_shared<const VersionShape>(ModelInfo{}, ShopSignature());
  const auto other = std::make_shared<const VersionShape>(ModelInfo{}, ShopSignature());
  BlockPool pool(2, 1 << 20);
  std::shared_ptr<AnswerBlock> block = pool.Get(shape, true);
  const AnswerBlock* const first = block.get();
  EXPECT_EQ(pool.num_spare(), 0);
  block.reset();
  EXPECT_EQ(pool.num_spare(), 1);
  EXPECT_NE(pool.Get(other, true).get(), first);
  EXPECT_NE(pool.Get(shape, false).get(), first);
  EXPECT_EQ(pool.num_spare(), 2);  // no more are kept
  EXPECT_EQ(pool.Get(shape, true).get(), first);
}

TEST(BlockPool, FreesWhatNobodyNeedsAndMayEndBeforeItsBlocks) {
  const auto shape = std::make_shared<const VersionShape>(ModelInfo{}, ShopSignature());
  std::shared_ptr<AnswerBlock> kept;
  {
    BlockPool pool(4, 1 << 20);
    kept = pool.Get(shape, true);
    pool.Get(shape, true);
    pool.FreeUnused();
    EXPECT_EQ(pool.num_spare(), 1);  // since then there were none for a while
    pool.Get(shape, true);           // needs it
    pool.FreeUnused();
    EXPECT_EQ(pool.num_spare(), 1);
    pool.FreeUnused();
    EXPECT_EQ(pool.num_spare(), 0);
  }
  EXPECT_EQ(kept->num_requests(), 0);
}

class AnswerRecorderTest : public testing::Test {
 protected:
  ~AnswerRecorderTest() override { opened_.servable->Close(); }

  bool Add(AnswerRecorder* recorder, bool keeps_inputs) {
    Made request;
    request.servable = opened_.servable;
    request.checked.num_rows = 1;
    request.outputs = std::string(4, '\0');
    request.keeps_inputs = keeps_inputs;
    const std::int32_t length = 0;
    const float number = 0.5F;
    request.checked.dense.resize(1);
    request.checked.dense[0].values = reinterpret_cast<const char*>(&number);
    request.checked.sparse.resize(1);
    request.checked.sparse[0].lengths = reinterpret_cast<const char*>(&length);
    return recorder->Add(request);
  }

  static std::int64_t NumIn(const AnswerBlocks& blocks) {
    std::int64_t sum = 0;
    for (const auto& block : blocks) sum += block->num_requests();
    return sum;
  }

  const Opened opened_ = HostSum([](Request&, const Status&, Message) {});
};

TEST_F(AnswerRecorderTest, HandsEachRequestOverOnceWhileThreadsAnswer) {
  constexpr std::int64_t kThreads = 4, kRequests = 50'000;
  AnswerRecorder recorder(std::int64_t{1} << 30);
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (std::int64_t j = 0; j < kRequests; ++j) Add(&recorder, j % 2 == 0);
    });
  }
  AnswerBlocks blocks;
  for (int i = 0; i < 100; ++i) recorder.Take(i % 2 == 0, &blocks);
  for (std::thread& thread : threads) thread.join();
  recorder.Take(true, &blocks);
  EXPECT_EQ(NumIn(blocks), kThreads * kRequests);
  EXPECT_EQ(recorder.num_dropped(), 0);
  for (const auto& block : blocks) EXPECT_EQ(block->sparse().empty(), !block->has_inputs());
}

TEST_F(AnswerRecorderTest, HandsOverFullBlocksAloneUnlessAskedForAll) {
  AnswerRecorder recorder(std::int64_t{1} << 30);
  std::int64_t num_added = 1;
  while (!Add(&recorder, false)) ++num_added;
  Add(&recorder, false);
  AnswerBlocks blocks;
  recorder.Take(false, &blocks);
  EXPECT_EQ(NumIn(blocks), num_added);
  recorder.Take(true, &blocks);
  EXPECT_EQ(NumIn(blocks), num_added + 1);
}

TEST_F(AnswerRecorderTest, DropsAndCountsWhatHasNoRoomUntilItIsTaken) {
  AnswerRecorder recorder(1000);
  for (int i = 0; i < 100; ++i) Add(&recorder, true);
  AnswerBlocks blocks;
  recorder.Take(true, &blocks);
  EXPECT_EQ(NumIn(blocks) + recorder.num_dropped(), 100);
  EXPECT_GT(recorder.num_dropped(), 0);
  EXPECT_EQ(recorder.num_inputs_dropped(), recorder.num_dropped());
  Add(&recorder, true);
  blocks.clear();
  recorder.Take(true, &blocks);
  EXPECT_EQ(NumIn(blocks), 1);
}

}  // namespace
}  // namespace recsys
