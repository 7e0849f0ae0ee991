// Rows of contexts that rows of the batch read in place: on every instruction set the same bits as
// with a copy for each row, however rows and tiles are cut.
// B rows, Q contexts, L places of a context, D numbers of a vector.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernels/kernels.h"
#include "ops/program/contexts.h"
#include "ops/program/program.h"
#include "ops/program/step_times.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

using Contexts = std::vector<std::int64_t>;

constexpr std::int64_t kDim = 8, kNumContexts = 5, kHidden = 24;

/// Rows attend to the vectors of their context: its keys are its values. A row has a vector for
/// each of `num_heads`.
class Attention {
 public:
  explicit Attention(std::int64_t num_places, std::int64_t num_heads = 1)
      : num_places_(num_places), num_heads_(num_heads) {
    const std::int64_t width = num_heads * kDim, num_scores = num_heads * num_places;
    Form scores, sums;
    const std::int64_t of_scores[] = {num_heads, 1, num_places, kDim};
    std::copy_n(of_scores, kLoops, scores.sizes);
    scores.strides = {{num_places, 0, 1, 0}, {kDim, 0, 0, 1}, {kDim, 0, width, 1}};
    const std::int64_t of_sums[] = {num_heads, 1, kDim, num_places};
    std::copy_n(of_sums, kLoops, sums.sizes);
    sums.strides = {{kDim, 0, 1, 0}, {num_places, 0, 0, 1}, {kDim, 0, 1, width}};
    program.forms = {scores, sums};
    const std::int64_t behind = ScratchWidth(num_scores);
    program.buffers = {{BufferKind::kInput, 0, width},
                       {BufferKind::kInput, 1, num_places * width},
                       {BufferKind::kInput, 2, width},
                       {BufferKind::kScratch, 0, num_scores},
                       {BufferKind::kScratch, behind, width},
                       {BufferKind::kScratch, behind + ScratchWidth(width), kHidden},
                       {BufferKind::kOutput, 0, 1}};
    const Place query{0, 0, width}, keys{1, 0, num_places * width}, bias{2, 0, width};
    const Place weights{3, 0, num_scores}, found{4, 0, width}, hidden{5, 0, kHidden};
    const auto by = [](ElementwiseKind kind) { return static_cast<std::int64_t>(kind); };
    program.steps = {
        {StepKind::kContract, weights, query, keys, {}, 0, 0},
        {StepKind::kElementwise,
         weights,
         weights,
         {},
         {},
         by(ElementwiseKind::kSoftmax),
         num_heads},
        {StepKind::kContract, found, weights, keys, {}, 1, 0},
        {StepKind::kElementwise, found, bias, found, {}, by(ElementwiseKind::kAdd), 1},
        {StepKind::kLinear, hidden, found, {}, {}, 0, 1},
        {StepKind::kLinear, {6, 0, 1}, hidden, {}, {}, 1, 2},
    };
    EXPECT_EQ(CheckProgram(3, 2, &program), "");
    layers.emplace_back(Random(static_cast<std::size_t>(kHidden * width), &random_), nullptr,
                        kHidden, width, WeightType::kFloat32);
    layers.emplace_back(Random(kHidden, &random_), nullptr, 1, kHidden, WeightType::kFloat32);
    keys_ = Random(static_cast<std::size_t>(kNumContexts * num_places * width), &random_);
    biases_ = Random(static_cast<std::size_t>(kNumContexts * width), &random_);
  }

  /// Returns a query for each row.
  Floats Queries(std::size_t num_rows) {
    return Random(num_rows * static_cast<std::size_t>(num_heads_ * kDim), &random_);
  }

  /// Returns the scores of rows of these contexts, of which those from `first` on are computed.
  Floats InPlace(const Contexts& contexts, const Floats& queries, std::int64_t first = 0,
                 StepClock* clock = nullptr) {
    BoundProgram bound = Bound(queries, keys_, biases_);
    bound.contexts = {contexts.data(), {1, 2}};
    return Scores(&bound, contexts.size(), first, clock);
  }

  /// Returns the scores of all rows by a copy of its context for each.
  Floats Copied(const Contexts& contexts, const Floats& queries) {
    const Floats keys = RowsOf(keys_, contexts), biases = RowsOf(biases_, contexts);
    BoundProgram bound = Bound(queries, keys, biases);
    return Scores(&bound, contexts.size(), 0, nullptr);
  }

  std::vector<StepTime> Times(const Contexts& contexts, const Floats& queries) {
    BoundProgram bound = Bound(queries, keys_, biases_);
    bound.contexts = {contexts.data(), {1, 2}};
    StepClock clock(program);
    Scores(&bound, contexts.size(), 0, &clock);
    return StepTimes(bound, static_cast<std::int64_t>(contexts.size()), clock);
  }

  std::int64_t TileFrom(const Contexts& contexts, std::int64_t first) {
    BoundProgram bound = Bound({}, keys_, biases_);
    bound.contexts = {contexts.data(), {1, 2}};
    return ContextRows(bound).TileFrom(first, static_cast<std::int64_t>(contexts.size()));
  }

  Program program;
  std::vector<Layer> layers;

 private:
  BoundProgram Bound(const Floats& queries, const Floats& keys, const Floats& biases) const {
    const std::int64_t width = num_heads_ * kDim;
    BoundProgram bound;
    bound.program = &program;
    bound.reads.resize(program.buffers.size());
    bound.writes.resize(program.buffers.size());
    bound.reads[0] = {queries.data(), width};
    bound.reads[1] = {keys.data(), num_places_ * width};
    bound.reads[2] = {biases.data(), width};
    for (const Layer& layer : layers) bound.weights.push_back(layer.packed);
    EXPECT_EQ(CheckBound(bound), "");
    return bound;
  }

  static Floats Scores(BoundProgram* bound, std::size_t num_rows, std::int64_t first,
                       StepClock* clock) {
    Floats scores(num_rows, -7);
    bound->writes[6] = {scores.data(), 1};
    const auto end = static_cast<std::int64_t>(num_rows);
    EXPECT_EQ(RunProgram(*bound, ChosenKernels(), first, end, clock).lookup, -1);
    return scores;
  }

  static Floats RowsOf(const Floats& of_contexts, const Contexts& contexts) {
    const auto width = static_cast<std::ptrdiff_t>(of_contexts.size() / kNumContexts);
    Floats rows;
    for (const std::int64_t context : contexts) {
      const auto at = of_contexts.begin() + context * width;
      rows.insert(rows.end(), at, at + width);
    }
    return rows;
  }

  const std::int64_t num_places_, num_heads_;
  std::mt19937 random_{1};
  Floats keys_, biases_;
};

/// Returns the contexts of rows: so many of each.
Contexts Runs(const std::vector<std::pair<std::int64_t, std::size_t>>& runs) {
  Contexts contexts;
  for (const auto& [context, count] : runs) contexts.insert(contexts.end(), count, context);
  return contexts;
}

Contexts Alternating(std::size_t num_rows, std::int64_t num_contexts) {
  Contexts contexts;
  for (std::size_t row = 0; row < num_rows; ++row) {
    contexts.push_back(static_cast<std::int64_t>(row) % num_contexts);
  }
  return contexts;
}

const std::vector<Contexts>& Batches() {
  static const std::vector<Contexts> batches = {
      {},
      {3},
      Runs({{2, 130}}),
      Runs({{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}),
      Runs({{4, 20}, {0, 1}, {1, 100}, {4, 3}, {2, 2}}),
      Runs({{1, 47}, {0, 1}, {1, 1}, {3, 48}}),
      Alternating(101, 2),
      Alternating(97, kNumContexts),
  };
  return batches;
}

class EachIsaContexts : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaContexts, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

TEST_P(EachIsaContexts, AreReadInPlaceWithTheBitsOfCopies) {
  for (const std::int64_t num_heads : {1, 3}) {
    // Few places, whose contexts are copied where they alternate, and many, for which tiles are
    // cut.
    for (const std::int64_t num_places : {3, 19, 1200}) {
      Attention attention(num_places, num_heads);
      for (const Contexts& contexts : Batches()) {
        const Floats queries = attention.Queries(contexts.size());
        EXPECT_EQ(attention.InPlace(contexts, queries), attention.Copied(contexts, queries))
            << num_heads << " heads, " << num_places << " places, " << contexts.size() << " rows";
      }
    }
  }
}

TEST_P(EachIsaContexts, ARowHasTheSameBitsWhereverTilesBegin) {
  Attention attention(19);
  for (const Contexts& contexts : Batches()) {
    const Floats queries = attention.Queries(contexts.size());
    const Floats scores = attention.InPlace(contexts, queries);
    for (std::size_t first = 0; first < contexts.size(); first += 1 + contexts.size() / 9) {
      const Floats found = attention.InPlace(contexts, queries, static_cast<std::int64_t>(first));
      const auto at = static_cast<std::ptrdiff_t>(first);
      EXPECT_TRUE(std::equal(found.begin() + at, found.end(), scores.begin() + at)) << first;
    }
  }
}

TEST_P(EachIsaContexts, LateStepsReadThemToo) {
  // Rows are so wide that few pass together, and the layers are late.
  Attention attention(8200);
  ASSERT_LT(attention.program.tile_rows, kProgramRows / 2);
  Program& program = attention.program;
  program.late.index.assign(program.buffers.size(), -1);
  program.late.first = 3;
  for (const std::size_t at : {4, 5}) {
    program.late.index[at] = program.late.width;
    program.late.width += ScratchWidth(program.buffers[at].width);
  }
  for (const Contexts& contexts : Batches()) {
    const Floats queries = attention.Queries(contexts.size());
    EXPECT_EQ(attention.InPlace(contexts, queries), attention.Copied(contexts, queries))
        << contexts.size() << " rows";
  }
}

TEST(Contexts, TilesAreCutWhereCopiesAreWide) {
  const Contexts contexts = Runs({{0, 60}, {1, 12}, {2, 1}, {3, 1}, {4, 40}});
  Attention narrow(3), wide(1200);
  EXPECT_EQ(narrow.TileFrom(contexts, 0), kProgramRows);
  // Rows of several contexts.
  EXPECT_EQ(narrow.TileFrom(contexts, 48), kProgramRows);
  EXPECT_EQ(wide.TileFrom(contexts, 0), kProgramRows);
  EXPECT_EQ(wide.TileFrom(contexts, 48), 12);
  EXPECT_EQ(wide.TileFrom(contexts, 60), 12);
  EXPECT_EQ(wide.TileFrom(contexts, 72), 1);
  EXPECT_EQ(wide.TileFrom(contexts, 74), 40);
  EXPECT_EQ(wide.TileFrom(contexts, 114), 0);
}

TEST(Contexts, ShortRunsPassTogetherUpToOneThatIsWorthATile) {
  Attention attention(100);
  const Contexts contexts = Runs({{0, 2}, {1, 3}, {2, 40}});
  EXPECT_EQ(attention.TileFrom(contexts, 0), 5);
  EXPECT_EQ(attention.TileFrom(contexts, 5), 40);
}

TEST(Contexts, CopiesAreTold) {
  Attention attention(3);
  const auto copies = [&](const Contexts& contexts) {
    const std::vector<StepTime> times =
        attention.Times(contexts, attention.Queries(contexts.size()));
    EXPECT_EQ(times[0].kind, "gather");
    EXPECT_EQ(times.size(), attention.program.steps.size() + 1);
    return times[0].num_rows;
  };
  EXPECT_EQ(copies(Runs({{1, 100}})), 0);
  EXPECT_EQ(copies(Alternating(50, 2)), 50);
}

TEST(Contexts, TheBytesOfARunAreReadOnce) {
  Attention attention(3);
  const auto num_bytes = [&](const Contexts& contexts) {
    return attention.Times(contexts, attention.Queries(contexts.size()))[1].num_bytes;
  };
  const std::int64_t of_row = 4 * kDim, of_context = 4 * 3 * kDim;
  EXPECT_EQ(num_bytes(Runs({{1, 60}, {0, 40}})), 100 * of_row + 2 * of_context);
  EXPECT_EQ(num_bytes(Alternating(50, 2)), 50 * (of_row + of_context));
}

}  // namespace
}  // namespace recsys::ops
