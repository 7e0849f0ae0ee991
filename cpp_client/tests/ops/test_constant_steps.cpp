// Which steps of a program run once, and that rows then read what they computed.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ops/program/constant_steps.h"

namespace recsys::ops {
namespace {

constexpr auto kAdd = static_cast<std::int64_t>(ElementwiseKind::kAdd);
constexpr auto kCopy = static_cast<std::int64_t>(ElementwiseKind::kCopy);

Step Sum(Place out, Place a, Place b) { return {StepKind::kElementwise, out, a, b, {}, kAdd, 1}; }
Step Copy(Place out, Place a) { return {StepKind::kElementwise, out, a, {}, {}, kCopy, 1}; }

/// An input, a constant, three buffers of scratch memory and an output, of two numbers each; one
/// buffer that holds four.
Program WithSteps(std::vector<Step> steps) {
  Program program;
  const std::int64_t each = ScratchWidth(2);
  program.buffers = {{BufferKind::kInput, 0, 2},          {BufferKind::kConstant, 0, 2},
                     {BufferKind::kScratch, 0, 2},        {BufferKind::kScratch, each, 2},
                     {BufferKind::kScratch, 2 * each, 4}, {BufferKind::kOutput, 0, 2}};
  program.features = {{}};
  program.steps = std::move(steps);
  EXPECT_EQ(CheckProgram(1, 1, &program), "");
  return program;
}

constexpr Place kIn{0, 0, 2}, kGiven{1, 0, 2}, kFirst{2, 0, 2}, kSecond{3, 0, 2}, kHalf{4, 0, 2},
    kOther{4, 2, 2}, kOut{5, 0, 2};

TEST(ConstantStepsTest, ChainsOfConstantsRunOnce) {
  Program program = WithSteps(
      {Sum(kFirst, kGiven, kGiven), Sum(kSecond, kFirst, kGiven), Sum(kOut, kSecond, kIn)});
  const std::int64_t width = program.scratch_width;
  const ConstantSteps once = TakeConstantSteps(1, &program);
  ASSERT_EQ(once.program.steps.size(), 2U);
  EXPECT_EQ(once.buffers, (std::vector<std::size_t>{2, 3}));
  ASSERT_EQ(program.steps.size(), 1U);
  EXPECT_EQ(program.buffers[3].kind, BufferKind::kConstant);
  EXPECT_EQ(program.buffers[3].index, 2);
  EXPECT_EQ(program.scratch_width, width);

  const std::vector<float> given = {1, 10}, in = {100, 200, 300, 400};
  std::vector<float> first(2), second(2), out(4);
  BoundProgram bound;
  bound.program = &once.program;
  bound.reads.resize(6);
  bound.writes.resize(6);
  bound.reads[0] = {in.data(), 2};
  bound.reads[1] = {given.data(), 0};
  bound.writes[2] = {first.data(), 2};
  bound.writes[3] = {second.data(), 2};
  RunProgram(bound, ChosenKernels(), 0, 1);
  bound.program = &program;
  bound.reads[3] = {second.data(), 0};
  bound.writes[5] = {out.data(), 2};
  RunProgram(bound, ChosenKernels(), 0, 2);
  EXPECT_EQ(out, (std::vector<float>{103, 230, 303, 430}));
}

TEST(ConstantStepsTest, OutputsAndWhatReadsRowsStay) {
  for (const std::vector<Step>& steps :
       {std::vector<Step>{Copy(kOut, kGiven)}, {Sum(kFirst, kGiven, kIn), Copy(kOut, kFirst)}}) {
    Program program = WithSteps(steps);
    EXPECT_TRUE(TakeConstantSteps(1, &program).buffers.empty());
    EXPECT_EQ(program.steps.size(), steps.size());
  }
}

TEST(ConstantStepsTest, StepsForTheFirstPlacesStay) {
  const Step leading = {StepKind::kFirst, {}, {0, 0, 1}, {}, {}, 1, 2};
  Program program = WithSteps({leading, Copy(kFirst, kGiven), Sum(kOut, kFirst, kIn)});
  EXPECT_TRUE(TakeConstantSteps(1, &program).buffers.empty());
  EXPECT_EQ(program.steps.size(), 3U);
}

TEST(ConstantStepsTest, ABufferThatAlsoHoldsRowsStays) {
  Program program = WithSteps({Sum(kFirst, kGiven, kGiven), Copy(kHalf, kFirst), Copy(kOther, kIn),
                               Sum(kOut, kHalf, kOther)});
  const ConstantSteps once = TakeConstantSteps(1, &program);
  EXPECT_EQ(once.buffers, (std::vector<std::size_t>{2}));
  EXPECT_EQ(program.steps.size(), 3U);
}

TEST(ConstantStepsTest, ABufferThatIsReadBeforeItIsCompleteStays) {
  Program program = WithSteps({Copy(kFirst, kGiven), Sum(kSecond, kFirst, kIn),
                               Sum(kFirst, kGiven, kGiven), Sum(kOut, kFirst, kSecond)});
  EXPECT_TRUE(TakeConstantSteps(1, &program).buffers.empty());
  EXPECT_EQ(program.steps.size(), 4U);
}

TEST(ConstantStepsTest, OfStepsForEachIdTheirSourcesRunOnce) {
  Program program = WithSteps({Sum(kFirst, kGiven, kGiven), Copy(kSecond, kIn)});
  program.buffers.push_back({BufferKind::kIds, 0, 2});
  program.steps.push_back({StepKind::kEachId, {}, {}, {}, {}, 2, 0});
  program.steps.push_back({StepKind::kToIds, {6, 0, 2}, kFirst, {}, {}, 0, 0});
  program.steps.push_back({StepKind::kSumIds, kSecond, {6, 0, 2}, {}, {}, 0, 0});
  EXPECT_EQ(TakeConstantSteps(1, &program).buffers, (std::vector<std::size_t>{2}));
  ASSERT_EQ(program.steps.size(), 4U);
  EXPECT_EQ(program.steps[1].kind, StepKind::kEachId);
}

}  // namespace
}  // namespace recsys::ops
