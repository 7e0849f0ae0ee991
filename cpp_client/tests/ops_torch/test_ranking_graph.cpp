// Graphs of contexts and rows: what is computed once, and kept, is what is computed each time.
// Shape letters: B rows, Q contexts, F features.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/torch/program_graph.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kUser = 3, kItem = 2, kDim = 4, kTableRows = 20;
constexpr auto kAdd = static_cast<std::int64_t>(ElementwiseKind::kAdd);
constexpr auto kCopy = static_cast<std::int64_t>(ElementwiseKind::kCopy);

// The inputs of a ranking form: dense of the context, dense of rows, two features of the context,
// one of rows.
enum Inputs : std::size_t {
  kUserDense,
  kItemDense,
  kContextLengths,
  kContextValues,
  kLengths,
  kValues,
  kRowContext,
  kNumInputs
};

ProgramStep Checked(ProgramStep step) {
  const std::string error =
      CheckProgram(static_cast<std::int64_t>(step.inputs.size()),
                   static_cast<std::int64_t>(step.constants.size()), &step.program);
  TORCH_CHECK(error.empty(), error);
  return step;
}

/// Rows of a context: its numbers, and the sums of its IDs' rows.
ProgramStep ContextStep(const at::Tensor& rows) {
  const std::int64_t bytes = kTableRows * kDim * 4;
  ProgramStep step;
  step.program.buffers = {{BufferKind::kInput, 0, kUser},
                          {BufferKind::kOutput, 0, kUser},
                          {BufferKind::kOutput, 1, 2 * kDim}};
  step.program.lookups = {{0, 1, 1, 2, -1, 0, 2}};
  step.program.steps = {
      {StepKind::kElementwise, {1, 0, kUser}, {0, 0, kUser}, {}, {}, kCopy, 1},
      {StepKind::kLookup, {2, 0, 2 * kDim}, {}, {}, {}, 0, 0},
  };
  const auto type = static_cast<std::int64_t>(RowType::kFloat32);
  // Offset, rows, type, width, column, no modulus, no last ID, feature.
  const std::vector<std::int64_t> slots{0,     kTableRows, type, kDim, 0,    0, -1, 0,
                                        bytes, kTableRows, type, kDim, kDim, 0, -1, 1};
  step.constants = {rows, at::tensor(slots, at::kLong).view({2, 8})};
  step.inputs = {kUserDense, kContextLengths, kContextValues};
  step.rows_of = 1;
  step.per_row = 2;
  step.widths = {kUser, 2 * kDim};
  return Checked(std::move(step));
}

/// Rows: the gathered numbers of their contexts, and their own numbers, summed in pairs.
ProgramStep RowStep(std::size_t first_place) {
  ProgramStep step;
  step.program.buffers = {{BufferKind::kInput, 0, kUser},
                          {BufferKind::kInput, 1, 2 * kDim},
                          {BufferKind::kInput, 2, kItem},
                          {BufferKind::kOutput, 0, kUser + 2 * kDim}};
  step.program.steps = {
      {StepKind::kElementwise, {3, 0, kItem}, {0, 0, kItem}, {2, 0, kItem}, {}, kAdd, 1},
      {StepKind::kElementwise, {3, kItem, 1}, {0, kItem, 1}, {}, {}, kCopy, 1},
      {StepKind::kElementwise, {3, kUser, 2 * kDim}, {1, 0, 2 * kDim}, {}, {}, kCopy, 1},
  };
  step.inputs = {first_place, first_place + 1, kItemDense};
  step.rows_of = 2;
  step.per_row = kItem;
  step.widths = {kUser + 2 * kDim};
  return Checked(std::move(step));
}

/// Keeps what is added, and counts it.
struct KeptContext : SharedContext {
  Values Find() const override { return values; }
  void Add(Values added) override {
    values = std::move(added);
    ++num_added;
  }

  Values values;
  int num_added = 0;
};

class RankingGraph : public ::testing::Test {
 protected:
  RankingGraph() {
    at::manual_seed(0);
    table_ = at::randn({2 * kTableRows, kDim});
    rows_ = at::from_blob(table_.mutable_data_ptr(), {table_.numel() * 4}, at::kByte);
  }

  GraphParts Parts() const {
    GraphParts parts;
    parts.num_inputs = kNumInputs;
    parts.steps.emplace_back().program = ContextStep(rows_);
    parts.steps.emplace_back().gather = {kNumInputs, kRowContext};
    parts.steps.emplace_back().gather = {kNumInputs + 1, kRowContext};
    parts.steps.emplace_back().program = RowStep(kNumInputs + 2);
    parts.outputs = {{"out", kNumInputs + 4}};
    return parts;
  }

  ContextInputs Contexts(std::int64_t cache_bytes) {
    ContextInputs contexts;
    contexts.is_ranking = true;
    contexts.dense = {kUserDense};
    contexts.lengths = kContextLengths;
    contexts.num_features = 2;
    if (cache_bytes > 0) contexts.cache = cache_ = std::make_shared<ContextCache>(cache_bytes);
    return contexts;
  }

  struct Context {
    std::vector<float> dense;
    std::vector<std::int64_t> first, second;
  };

  /// Returns the inputs of rows by their contexts.
  static std::vector<at::Tensor> InputsOf(const std::vector<Context>& contexts,
                                          const std::vector<std::int64_t>& row_context) {
    std::vector<float> dense;
    std::vector<std::int64_t> lengths, values;
    for (const Context& context : contexts) {
      dense.insert(dense.end(), context.dense.begin(), context.dense.end());
    }
    for (const auto feature : {&Context::first, &Context::second}) {
      for (const Context& context : contexts) {
        lengths.push_back(static_cast<std::int64_t>((context.*feature).size()));
        values.insert(values.end(), (context.*feature).begin(), (context.*feature).end());
      }
    }
    const auto num_rows = static_cast<std::int64_t>(row_context.size());
    const at::Tensor items = at::arange(num_rows * kItem, at::kFloat).view({num_rows, kItem});
    return {at::tensor(dense, at::kFloat).view({-1, kUser}),
            items,
            at::tensor(lengths, at::kLong),
            at::tensor(values, at::kLong),
            at::zeros({num_rows}, at::kLong),
            at::zeros({0}, at::kLong),
            at::tensor(row_context, at::kLong)};
  }

  /// Expects the bits that a graph gives which knows of no contexts.
  void ExpectSame(const ProgramGraph& graph, const std::vector<at::Tensor>& inputs) const {
    const at::Tensor got = graph.Run(inputs)[0].second;
    const at::Tensor want = ProgramGraph(Parts()).Run(inputs)[0].second;
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_TRUE(at::equal(got.view(at::kInt), want.view(at::kInt)));
  }

  /// Returns some of the rows of inputs without IDs of rows.
  static std::vector<at::Tensor> RowsOf(std::vector<at::Tensor> inputs, std::int64_t begin,
                                        std::int64_t end) {
    for (const auto at : {kItemDense, kLengths, kRowContext}) {
      inputs[at] = inputs[at].slice(0, begin, end).contiguous();
    }
    return inputs;
  }

  ContextCacheCounts counts() const { return cache_->counts(); }

  at::Tensor table_, rows_;
  std::shared_ptr<ContextCache> cache_;
  const Context a_{{1, 2, 3}, {1, 2}, {3}}, b_{{1, 2, 4}, {1, 2}, {3}}, c_{{1, 2, 3}, {1}, {2, 3}};
};

TEST_F(RankingGraph, ComputesEqualContextsOnceAndKeepsThem) {
  const ProgramGraph graph(Parts(), Contexts(1 << 20));
  EXPECT_EQ(graph.why_not_cached(), "");
  ExpectSame(graph, InputsOf({a_, b_, a_, a_, c_}, {0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(counts().misses, 3);
  EXPECT_EQ(counts().hits, 0);
  EXPECT_EQ(counts().entries, 3);
  ExpectSame(graph, InputsOf({c_, b_, a_}, {2, 1, 0, 1}));
  EXPECT_EQ(counts().hits, 3);
  EXPECT_EQ(counts().misses, 3);
}

TEST_F(RankingGraph, ComputesEqualContextsOnceWithoutACache) {
  const ProgramGraph graph(Parts(), Contexts(0));
  ExpectSame(graph, InputsOf({a_, b_, a_, c_, c_}, {4, 3, 2, 1, 0, 0}));
  ExpectSame(graph, InputsOf({a_, a_}, {1, 0, 1, 0}));
}

TEST_F(RankingGraph, TellsContextsApartByTheirBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Context zero{{0, 0, 0}, {}, {}}, negative{{0, -0.0F, 0}, {}, {}};
  const Context unknown{{nan, 0, 0}, {}, {}}, other{{-nan, 0, 0}, {}, {}};
  const ProgramGraph graph(Parts(), Contexts(1 << 20));
  for (int time = 0; time < 2; ++time) {
    ExpectSame(graph, InputsOf({zero, negative, unknown, other, unknown}, {4, 0, 1, 2, 3}));
    EXPECT_EQ(counts().misses, 4);
    EXPECT_EQ(counts().hits, 4 * time);
  }
}

TEST_F(RankingGraph, TellsContextsApartByWhereBagsEnd) {
  const Context left{{0, 0, 0}, {1, 2}, {3}}, right{{0, 0, 0}, {1}, {2, 3}};
  const ProgramGraph graph(Parts(), Contexts(1 << 20));
  ExpectSame(graph, InputsOf({left, right}, {0, 1}));
  EXPECT_EQ(counts().misses, 2);
}

TEST_F(RankingGraph, TakesContextsInAnyOrderAndWithoutRows) {
  const ProgramGraph graph(Parts(), Contexts(1 << 20));
  ExpectSame(graph, InputsOf({a_, b_}, {0, 1, 0, 1, 0, 1, 1}));
  ExpectSame(graph, InputsOf({a_, c_, b_}, {2, 2, 0}));
  EXPECT_EQ(counts().misses, 3);
  ExpectSame(graph, InputsOf({a_, c_, b_}, {}));
  EXPECT_EQ(counts().hits, 5);
}

TEST_F(RankingGraph, MixesWhatItKeepsWithWhatItComputes) {
  const ProgramGraph graph(Parts(), Contexts(12000));
  std::mt19937 random(1);
  std::vector<Context> known;
  for (int i = 0; i < 60; ++i) {
    Context& context = known.emplace_back();
    for (std::int64_t k = 0; k < kUser; ++k) context.dense.push_back(static_cast<float>(i) / 3);
    for (auto* const ids : {&context.first, &context.second}) {
      for (std::uint32_t k = random() % 4; k > 0; --k) ids->push_back(random() % kTableRows);
    }
  }
  for (int time = 0; time < 200; ++time) {
    std::vector<Context> contexts;
    for (std::uint32_t k = random() % 9 + 1; k > 0; --k) contexts.push_back(known[random() % 60]);
    std::vector<std::int64_t> row_context;
    for (std::uint32_t k = random() % 70; k > 0; --k) {
      row_context.push_back(static_cast<std::int64_t>(random() % contexts.size()));
    }
    ExpectSame(graph, InputsOf(contexts, row_context));
    ASSERT_LE(counts().bytes, 12000);
  }
  EXPECT_GT(counts().hits, 100);
  EXPECT_GT(counts().evictions, 100);
}

TEST_F(RankingGraph, AnswersWhereNothingFits) {
  const ProgramGraph graph(Parts(), Contexts(1));
  for (int time = 0; time < 2; ++time) ExpectSame(graph, InputsOf({a_, b_, a_}, {0, 1, 2}));
  EXPECT_EQ(counts().misses, 4);
  EXPECT_EQ(counts().entries, 0);
}

TEST_F(RankingGraph, KeepsNothingOfRowsThatHaveChanged) {
  const ProgramGraph graph(Parts(), Contexts(1 << 20));
  ExpectSame(graph, InputsOf({a_, b_}, {0, 1}));
  table_.add_(1);
  cache_->Clear();
  ExpectSame(graph, InputsOf({a_, b_}, {0, 1}));
  EXPECT_EQ(counts().hits, 0);
}

TEST_F(RankingGraph, SharesNothingWithGraphsOfOtherWeights) {
  ContextInputs contexts = Contexts(1 << 20);
  const ProgramGraph first(Parts(), contexts);
  ExpectSame(first, InputsOf({a_}, {0}));
  table_ = at::randn_like(table_);
  rows_ = at::from_blob(table_.mutable_data_ptr(), {table_.numel() * 4}, at::kByte);
  ExpectSame(ProgramGraph(Parts(), contexts), InputsOf({a_}, {0}));
  EXPECT_EQ(counts().hits, 0);
}

TEST_F(RankingGraph, LeavesAnswersAloneThatOutliveWhatItKeeps) {
  const ProgramGraph graph(Parts(), Contexts(1 << 20));
  const std::vector<at::Tensor> inputs = InputsOf({a_}, {0, 0});
  const at::Tensor want = ProgramGraph(Parts()).Run(inputs)[0].second;
  graph.Run(inputs);
  const at::Tensor got = graph.Run(inputs)[0].second;
  cache_->Clear();
  EXPECT_TRUE(at::equal(got, want));
}

TEST_F(RankingGraph, RefusesWhatItRefusesWithoutContexts) {
  const ProgramGraph graph(Parts(), Contexts(1 << 20)), plain(Parts());
  const auto expect_same_error = [&](const std::vector<at::Tensor>& inputs) {
    std::string got = "nothing", want = "nothing";
    try {
      graph.Run(inputs);
    } catch (const std::runtime_error& error) {
      got = error.what();
    }
    try {
      plain.Run(inputs);
    } catch (const std::runtime_error& error) {
      want = error.what();
    }
    EXPECT_NE(want, "nothing");
    EXPECT_EQ(got, want);
  };
  const auto with = [&](std::size_t at, const at::Tensor& tensor) {
    std::vector<at::Tensor> inputs = InputsOf({a_, b_}, {0, 1});
    inputs[at] = tensor;
    return inputs;
  };
  expect_same_error(with(kContextLengths, at::tensor({2, 2, 1, -1}, at::kLong)));
  expect_same_error(with(kContextLengths, at::tensor({2, 2, 1, 5}, at::kLong)));
  expect_same_error(with(kContextLengths, at::tensor({2, 2, 1, 1}, at::kFloat)));
  expect_same_error(with(kContextValues, at::full({6}, kTableRows, at::kLong)));
  expect_same_error(with(kUserDense, at::zeros({3, kUser})));
  expect_same_error(with(kUserDense, at::zeros({2, kUser}, at::kDouble)));
  expect_same_error(with(kRowContext, at::tensor({0, 2}, at::kLong)));
  expect_same_error(with(kRowContext, at::tensor({0, -1}, at::kLong)));
  EXPECT_EQ(counts().entries, 0);
}

TEST_F(RankingGraph, SaysWhyItKeepsNothing) {
  GraphParts parts;
  parts.num_inputs = kNumInputs;
  parts.steps.emplace_back().gather = {kUserDense, kRowContext};
  parts.outputs = {{"out", kNumInputs}};
  const ProgramGraph graph(std::move(parts), Contexts(1 << 20));
  EXPECT_EQ(graph.why_not_cached(), "no step computes values of contexts alone");
  const std::vector<at::Tensor> inputs = InputsOf({a_, b_, a_}, {2, 1, 0});
  KeptContext shared;
  EXPECT_TRUE(at::equal(graph.Run(inputs, &shared)[0].second,
                        inputs[kUserDense].index_select(0, inputs.back())));
  EXPECT_EQ(shared.num_added, 0);
}

TEST_F(RankingGraph, SharesAContextWithABatchOfOtherRows) {
  const std::vector<std::int64_t> row_context(7, 0);
  const at::Tensor want = ProgramGraph(Parts()).Run(InputsOf({a_}, row_context))[0].second;
  // Without a cache, with one that holds nothing, and one that holds the context the second time.
  for (const std::int64_t cache_bytes : {0, 1, 1 << 20}) {
    const ProgramGraph graph(Parts(), Contexts(cache_bytes));
    for (int time = 0; time < 2; ++time) {
      KeptContext shared;
      const at::Tensor first =
          graph.Run(RowsOf(InputsOf({a_}, row_context), 0, 3), &shared)[0].second;
      EXPECT_EQ(shared.num_added, 1);
      // The other batch's own context is not computed.
      const at::Tensor rest =
          graph.Run(RowsOf(InputsOf({c_}, row_context), 3, 7), &shared)[0].second;
      EXPECT_EQ(shared.num_added, 1);
      EXPECT_TRUE(at::equal(at::cat({first, rest}).view(at::kInt), want.view(at::kInt)));
    }
    if (cache_bytes > 1) {
      EXPECT_EQ(counts().hits, 1);
    }
  }
}

TEST_F(RankingGraph, RefusesInputsThatItDoesNotHave) {
  ContextInputs contexts = Contexts(0);
  contexts.lengths = kValues;
  EXPECT_THROW(ProgramGraph(Parts(), contexts), c10::Error);
}

}  // namespace
}  // namespace recsys::ops
