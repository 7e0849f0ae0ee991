// Which rows pass which steps of a program together.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/kernels/kernels.h"
#include "ops/program/program.h"
#include "ops/program/tiles.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kNumDense = 4, kWide = 16000, kNarrow = 16, kHidden = 512, kMany = 520;

/// Layers of which rows are wide between the first two, and the fourth has many weights.
class WideRows : public testing::Test {
 protected:
  void SetUp() override {
    const std::int64_t sizes[] = {kNumDense, kWide, kNarrow, kHidden, kMany, 1};
    std::int64_t at = 0;
    program.buffers.push_back({BufferKind::kInput, 0, kNumDense});
    for (std::int64_t i = 0; i < 5; ++i) {
      const std::int64_t num_inputs = sizes[i], num_outputs = sizes[i + 1];
      const auto scale = 1 / std::sqrt(static_cast<float>(num_inputs));
      Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
      for (float& value : weight) value *= scale;
      layers.emplace_back(weight, nullptr, num_outputs, num_inputs, WeightType::kFloat32);
      weights.push_back(layers.back().packed);
      const bool is_last = i == 4;
      program.buffers.push_back(
          {is_last ? BufferKind::kOutput : BufferKind::kScratch, is_last ? 0 : at, num_outputs});
      at += ScratchWidth(num_outputs);
      program.steps.push_back(
          {StepKind::kLinear, {i + 1, 0, num_outputs}, {i, 0, num_inputs}, {}, {}, i, 0});
    }
    program.num_outputs = 1;
    program.scratch_width = at;
    ChooseTiles(weights, &program);
  }

  Floats Scores(const Program& of, std::int64_t num_rows) {
    const Floats dense = Random(static_cast<std::size_t>(num_rows * kNumDense), &inputs);
    Floats scores(static_cast<std::size_t>(num_rows), -1);
    BoundProgram bound;
    bound.program = &of;
    bound.reads.resize(of.buffers.size());
    bound.writes.resize(of.buffers.size());
    bound.reads[0] = {dense.data(), kNumDense};
    bound.writes[5] = {scores.data(), 1};
    bound.weights = weights;
    EXPECT_EQ(CheckBound(bound), "");
    EXPECT_EQ(RunProgram(bound, ChosenKernels(), 0, num_rows).lookup, -1);
    inputs.seed(2);
    return scores;
  }

  std::mt19937 random{1}, inputs{2};
  std::vector<Layer> layers;
  std::vector<Packed> weights;
  Program program;
};

TEST_F(WideRows, PassManyWeightsTogether) {
  EXPECT_LT(program.tile_rows, kProgramRows / 2);
  EXPECT_EQ(program.late.first, 3);
  EXPECT_EQ(program.late.index,
            (std::vector<std::int64_t>{-1, -1, -1, ScratchWidth(kMany), 0, -1}));
  Program plain = program;
  plain.late = {};
  for (const std::int64_t num_rows : {1, 6, 7, 41, 42, 43, 100}) {
    EXPECT_EQ(Scores(program, num_rows), Scores(plain, num_rows)) << num_rows << " rows";
  }
}

TEST_F(WideRows, PassThemByTilesWhereTheyAreWideThere) {
  // The layer with many weights reads the wide rows.
  program.steps[3].b = {1, 0, kWide};
  ChooseTiles(weights, &program);
  EXPECT_FALSE(program.late.any());
}

TEST_F(WideRows, PassThemByTilesWhereABufferHasTwoNames) {
  program.buffers.push_back(program.buffers[3]);
  program.steps[3].a.buffer = 6;
  ChooseTiles(weights, &program);
  EXPECT_FALSE(program.late.any());
  Program named = program;
  named.steps[3].a.buffer = 3;
  EXPECT_EQ(Scores(program, 50), Scores(named, 50));
}

TEST_F(WideRows, PassThemByTilesWhereIdsFollow) {
  program.steps.push_back({StepKind::kLength, {5, 0, 1}, {}, {}, {}, 0, 0});
  ChooseTiles(weights, &program);
  EXPECT_FALSE(program.late.any());
}

TEST(ProgramTiles, NarrowRowsPassAllStepsTogether) {
  Program program;
  program.scratch_width = 1000;
  ChooseTiles({}, &program);
  EXPECT_EQ(program.tile_rows, kProgramRows);
  EXPECT_FALSE(program.late.any());
}

}  // namespace
}  // namespace recsys::ops
