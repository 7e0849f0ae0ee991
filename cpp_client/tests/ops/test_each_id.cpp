// Steps for each ID of a row: on every instruction set against loops, and those that are wrong.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/program/program.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kMost = 5, kDim = 6, kOut = 3;
constexpr float kPadding = -4;

/// A layer over the vector of each ID and the vector of its row, of kMost IDs at most.
struct PerId {
  PerId() {
    program.buffers = {{BufferKind::kInput, 0, 1},
                       {BufferKind::kInput, 1, kMost * kDim},
                       {BufferKind::kInput, 2, kDim},
                       {BufferKind::kIds, 0, 2 * kDim},
                       {BufferKind::kIds, ScratchWidth(2 * kDim), kOut},
                       {BufferKind::kOutput, 0, kMost * kOut}};
    program.num_outputs = 1;
    program.steps = {
        {StepKind::kEachId, {}, {0, 0, 1}, {}, {}, 4, kMost},
        {StepKind::kToIds, {3, 0, kDim}, {1, 0, kMost * kDim}, {}, {}, 0, 0},
        {StepKind::kToIds, {3, kDim, kDim}, {2, 0, kDim}, {}, {}, 0, 0},
        {StepKind::kLinear, {4, 0, kOut}, {3, 0, 2 * kDim}, {}, {}, 0, 1},
        {StepKind::kFromIds, {5, 0, kMost * kOut}, {4, 0, kOut}, {}, {}, 0, 0},
    };
  }

  std::string Check() { return CheckProgram(3, 1, &program); }

  /// Returns the outputs of rows whose IDs are so many.
  Floats Run(const Floats& num_ids, const Floats& vectors, const Floats& rows) {
    EXPECT_EQ(Check(), "");
    Floats out(num_ids.size() * kMost * kOut, kPadding);
    BoundProgram bound;
    bound.program = &program;
    bound.reads = {
        {num_ids.data(), 1}, {vectors.data(), kMost * kDim}, {rows.data(), kDim}, {}, {}, {}};
    bound.writes = {{}, {}, {}, {}, {}, {out.data(), kMost * kOut}};
    bound.weights = {layer.packed};
    EXPECT_EQ(CheckBound(bound), "");
    EXPECT_EQ(
        RunProgram(bound, ChosenKernels(), 0, static_cast<std::int64_t>(num_ids.size())).lookup,
        -1);
    return out;
  }

  std::mt19937 random{3};
  Floats weight = Random(kOut * 2 * kDim, &random), bias = Random(kOut, &random);
  Layer layer{weight, &bias, kOut, 2 * kDim, WeightType::kFloat32};
  Program program;
};

class EachIsaIds : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

TEST_P(EachIsaIds, LayersOverIdsAreThoseOfLoops) {
  for (const std::size_t num_rows : {0, 1, 2, 47, 130}) {
    PerId per_id;
    Floats num_ids;
    std::vector<std::int64_t> counts;
    for (std::size_t row = 0; row < num_rows; ++row) {
      // More than there are places too.
      const std::int64_t count = static_cast<std::int64_t>(per_id.random() % (kMost + 3));
      num_ids.push_back(static_cast<float>(count));
      counts.push_back(std::min(count, kMost));
    }
    const Floats vectors = Random(num_rows * kMost * kDim, &per_id.random);
    const Floats rows = Random(num_rows * kDim, &per_id.random);
    const Floats out = per_id.Run(num_ids, vectors, rows);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t column = i % kOut, place = i / kOut % kMost, row = i / kOut / kMost;
      double expected = kPadding;
      if (static_cast<std::int64_t>(place) < counts[row]) {
        expected = per_id.bias[column];
        for (std::size_t k = 0; k < kDim; ++k) {
          const float* const at = &per_id.weight[column * 2 * kDim];
          expected += at[k] * vectors[(row * kMost + place) * kDim + k] +
                      at[kDim + k] * rows[row * kDim + k];
        }
        expected = std::max(expected, 0.0);
      }
      ASSERT_NEAR(out[i], expected, 1e-5) << i;
    }
  }
}

TEST_P(EachIsaIds, WhatIsNoNumberOfIdsIsBounded) {
  PerId per_id;
  const Floats num_ids = {std::numeric_limits<float>::quiet_NaN(), -3, 1e30F,
                          -std::numeric_limits<float>::infinity(), 1.9F};
  const Floats vectors = Random(num_ids.size() * kMost * kDim, &per_id.random);
  const Floats rows = Random(num_ids.size() * kDim, &per_id.random);
  const Floats out = per_id.Run(num_ids, vectors, rows);
  const std::int64_t expected[] = {0, 0, kMost, 0, 1};
  for (std::size_t row = 0; row < num_ids.size(); ++row) {
    for (std::int64_t place = 0; place < kMost; ++place) {
      const float found = out[(row * kMost + static_cast<std::size_t>(place)) * kOut];
      EXPECT_EQ(found == kPadding, place >= expected[row]) << row << ' ' << place;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaIds, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

TEST(EachIdTest, WrongStepsAreRefused) {
  const auto refused = [](std::size_t at, const auto& change) {
    PerId per_id;
    change(&per_id.program.steps[at], &per_id.program);
    return per_id.Check() == "got a wrong step at position " + std::to_string(at);
  };
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{5},
                                    std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_TRUE(refused(0, [&](Step* step, Program*) { step->index = number; })) << number;
  }
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 40}) {
    EXPECT_TRUE(refused(0, [&](Step* step, Program*) { step->extra = number; })) << number;
  }
  // Vectors of four IDs, or sums for six.
  EXPECT_TRUE(refused(1, [](Step*, Program* program) { program->steps[0].extra = kMost - 1; }));
  EXPECT_TRUE(refused(4, [](Step* step, Program*) { step->out.width = kOut; }));
  EXPECT_TRUE(refused(0, [](Step* step, Program*) { step->a = {1, 0, 2}; }));
  EXPECT_TRUE(refused(0, [](Step* step, Program*) { step->a = {9, 0, 1}; }));
  EXPECT_TRUE(refused(0, [](Step* step, Program*) { step->a = {3, 0, 1}; }));
  // All IDs of a feature that is not there; and places among all IDs of one that is.
  EXPECT_TRUE(refused(0, [](Step* step, Program*) {
    step->a = {};
    step->extra = 0;
  }));
  const auto all = [](Program* program) {
    program->features = {{0, 1, 1, 0}};
    program->steps[0].a = {};
    program->steps[0].extra = 0;
  };
  EXPECT_TRUE(refused(1, [&](Step*, Program* program) { all(program); }));
  EXPECT_TRUE(refused(4, [&](Step*, Program* program) {
    all(program);
    program->steps[1].a = {2, 0, kDim};
  }));
  EXPECT_TRUE(refused(4, [](Step* step, Program*) { step->kind = StepKind::kSumIds; }));
  // Rows of each ID are those of the feature.
  EXPECT_TRUE(refused(1, [&](Step* step, Program* program) {
    all(program);
    program->lookups = {{0, 0, 1, 0, -1, 2, 1}};
    *step = {StepKind::kReadIds, {3, 0, kDim}, {}, {}, {}, 0, 0};
  }));
  EXPECT_TRUE(refused(1, [](Step* step, Program* program) {
    program->lookups = {{0, 0, 0, 1, -1, 2, 1}};
    *step = {StepKind::kReadIds, {3, 0, kDim}, {}, {}, {}, 0, 0};
  }));
  // Rows are read and written where there are IDs, and IDs where there are rows.
  EXPECT_TRUE(refused(1, [](Step* step, Program*) { step->out = {5, 0, kDim}; }));
  EXPECT_TRUE(refused(1, [](Step* step, Program*) { step->a = {3, kDim, kDim}; }));
  EXPECT_TRUE(refused(3, [](Step* step, Program*) { step->a = {1, 0, 2 * kDim}; }));
  EXPECT_TRUE(refused(3, [](Step* step, Program*) { step->out = {5, 0, kOut}; }));
  EXPECT_TRUE(refused(4, [](Step* step, Program*) { step->a = {2, 0, kOut}; }));
  EXPECT_TRUE(refused(4, [](Step*, Program* program) { program->steps[0].index = 3; }));
  EXPECT_TRUE(refused(3, [](Step*, Program* program) { program->steps[0].index = 2; }));
  // One within the other, and none of either.
  EXPECT_TRUE(refused(1, [](Step* step, Program*) {
    *step = {StepKind::kEachId, {}, {0, 0, 1}, {}, {}, 1, kMost};
  }));
  EXPECT_TRUE(
      refused(0, [](Step*, Program* program) { program->steps.erase(program->steps.begin()); }));
  // Bags are read by row.
  EXPECT_TRUE(refused(1, [](Step* step, Program* program) {
    program->features = {{0, 1, 1, 0}};
    *step = {StepKind::kLength, {3, 0, 1}, {}, {}, {}, 0, 0};
  }));
}

}  // namespace
}  // namespace recsys::ops
