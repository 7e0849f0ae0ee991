// Steps for the first places of each row: on every instruction set what all places are up to there,
// and steps that are wrong.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/program/bags/places.h"
#include "ops/program/program.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kSize = 5, kDim = 4, kHeads = 2;
constexpr float kBefore = -7;
/// Numbers of IDs, of which some are none.
const Floats kNumIds = {0, 1, 3, 5, 9, -2, std::numeric_limits<float>::quiet_NaN()};
constexpr std::int64_t kCounts[] = {0, 1, 3, 5, 5, 0, 0};

std::int64_t Bits(float number) {
  std::int64_t bits = 0;
  std::memcpy(&bits, &number, sizeof(number));
  return bits;
}

/// A step that takes two inputs, for the first places of rows.
struct OfPlaces {
  OfPlaces(Step leading, Step step, std::vector<Form> forms = {}) {
    program.buffers = {{BufferKind::kInput, 0, 1},
                       {BufferKind::kInput, 1, step.a.width},
                       {BufferKind::kInput, 2, std::max<std::int64_t>(step.b.width, 1)},
                       {BufferKind::kOutput, 0, step.out.width}};
    leading.a = {0, 0, 1};
    step.a.buffer = 1;
    step.b.buffer = step.b.width > 0 ? 2 : 0;
    if (step.c.width > 0) step.c.buffer = 2;
    step.out.buffer = 3;
    program.num_outputs = 1;
    program.forms = std::move(forms);
    program.steps = {leading, step};
  }

  std::string Check() { return CheckProgram(3, 1, &program); }

  /// Returns what all rows get, which held kBefore.
  Floats Run() {
    EXPECT_EQ(Check(), "");
    const Step& step = program.steps.back();
    Floats out(kNumIds.size() * static_cast<std::size_t>(step.out.width), kBefore);
    const auto b_stride = step.b.width > 0 ? step.b.width : 1;
    BoundProgram bound;
    bound.program = &program;
    bound.reads = {{kNumIds.data(), 1}, {a.data(), step.a.width}, {b.data(), b_stride}, {}};
    bound.writes = {{}, {}, {}, {out.data(), step.out.width}};
    bound.weights = {layer.packed};
    EXPECT_EQ(CheckBound(bound), "");
    EXPECT_EQ(
        RunProgram(bound, ChosenKernels(), 0, static_cast<std::int64_t>(kNumIds.size())).lookup,
        -1);
    return out;
  }

  /// Checks that a number is that of all places if `is_first(number, count)`, and else as it was.
  template <typename IsFirst>
  void Check(const IsFirst& is_first) {
    const Floats found = Run();
    program.steps.erase(program.steps.begin());
    const Floats all = Run();
    const auto width = static_cast<std::size_t>(program.steps[0].out.width);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const bool is = is_first(static_cast<std::int64_t>(i % width), kCounts[i / width]);
      ASSERT_EQ(found[i], is ? all[i] : kBefore) << i / width << ' ' << i % width;
    }
  }

  std::mt19937 random{5};
  Floats a = Random(kNumIds.size() * 1000, &random), b = Random(kNumIds.size() * 1000, &random);
  Floats weight = Random(3 * kDim, &random);
  Layer layer{weight, nullptr, 3, kDim, WeightType::kFloat32};
  Program program;
};

Step First(std::int64_t index, StepKind kind = StepKind::kFirst) {
  return {kind, {}, {}, {}, {}, index, kSize};
}

Step Of(ElementwiseKind kind, std::int64_t width, std::int64_t extra = 1, std::int64_t a_width = 0,
        std::int64_t b_width = 0) {
  return {StepKind::kElementwise,
          {0, 0, width},
          {0, 0, a_width > 0 ? a_width : width},
          {0, 0, b_width},
          {},
          static_cast<std::int64_t>(kind),
          extra};
}

class EachIsaPlaces : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

TEST_P(EachIsaPlaces, NumbersOneByOne) {
  const auto is_first = [](std::int64_t i, std::int64_t count) { return i / kDim % kSize < count; };
  constexpr std::int64_t kWidth = kHeads * kSize * kDim;
  OfPlaces(First(kDim), Of(ElementwiseKind::kGelu, kWidth)).Check(is_first);
  OfPlaces(First(kDim), Of(ElementwiseKind::kScale, kWidth, Bits(.5F))).Check(is_first);
  OfPlaces(First(kDim), Of(ElementwiseKind::kAdd, kWidth, 1, 0, kWidth)).Check(is_first);
  OfPlaces(First(kDim), Of(ElementwiseKind::kMultiply, kWidth, kDim, kWidth / kDim, kWidth))
      .Check(is_first);
  OfPlaces(First(kDim), Of(ElementwiseKind::kTotal, kWidth, 3, 3 * kWidth)).Check(is_first);
  OfPlaces(First(kDim), Of(ElementwiseKind::kSoftmax, kWidth, kHeads * kSize)).Check(is_first);
  Step norm = Of(ElementwiseKind::kLayerNorm, kWidth, Bits(1e-5F), 0, kDim);
  norm.c = {0, 0, kDim};
  OfPlaces(First(kDim), norm).Check(is_first);
}

TEST_P(EachIsaPlaces, PairsOfPlaces) {
  constexpr std::int64_t kWidth = kHeads * kSize * kSize;
  OfPlaces(First(1, StepKind::kFirstPairs), Of(ElementwiseKind::kSilu, kWidth))
      .Check([](std::int64_t i, std::int64_t count) {
        return i % kSize < count && i / kSize % kSize < count;
      });
  OfPlaces(First(2, StepKind::kFirstPairs), Of(ElementwiseKind::kAdd, 2 * kWidth, 1, 0, 2 * kWidth))
      .Check([](std::int64_t i, std::int64_t count) {
        return i / 2 % kSize < count && i / 2 / kSize % kSize < count;
      });
}

TEST_P(EachIsaPlaces, SharesOfTheFirstPlacesAreThoseOfRunsThatEndThere) {
  constexpr std::int64_t kWidth = kHeads * kSize * kSize;
  for (const StepKind kind : {StepKind::kFirst, StepKind::kFirstPairs}) {
    OfPlaces step(First(1, kind), Of(ElementwiseKind::kSoftmaxOrZeros, kWidth, kHeads * kSize));
    // As a mask leaves it.
    for (std::size_t i = 0; i < kNumIds.size() * kWidth; ++i) {
      if (static_cast<std::int64_t>(i) % kSize >= kCounts[i / kWidth]) {
        step.a[i] = -std::numeric_limits<float>::infinity();
      }
    }
    step.Check([&](std::int64_t i, std::int64_t count) {
      const bool has_row = kind == StepKind::kFirst || i / kSize % kSize < count;
      return has_row && i % kSize < count;
    });
  }
}

TEST_P(EachIsaPlaces, VectorsOfALayer) {
  OfPlaces(First(2 * 3),
           {StepKind::kLinear, {0, 0, kSize * 2 * 3}, {0, 0, kSize * 2 * kDim}, {}, {}, 0, 0})
      .Check([](std::int64_t i, std::int64_t count) { return i / 6 < count; });
}

TEST_P(EachIsaPlaces, LoopsOfForms) {
  Form form;
  // A vector for each place added to each head's: [H, S, D].
  const std::int64_t sizes[] = {1, kHeads, kSize, kDim};
  std::copy_n(sizes, kLoops, form.sizes);
  form.strides = {{0, kSize * kDim, kDim, 1}, {0, kSize * kDim, kDim, 1}, {0, 0, kDim, 1}};
  OfPlaces(First(0b100),
           {StepKind::kBroadcast,
            {0, 0, 40},
            {0, 0, 40},
            {0, 0, 20},
            {},
            0,
            static_cast<std::int64_t>(ElementwiseKind::kAdd)},
           {form})
      .Check([](std::int64_t i, std::int64_t count) { return i / kDim % kSize < count; });
  // Products of all vectors of a head with all others: [H, S, S].
  Form products;
  const std::int64_t of_products[] = {kHeads, kSize, kSize, kDim};
  std::copy_n(of_products, kLoops, products.sizes);
  products.strides = {{kSize * kSize, kSize, 1, 0}, {20, kDim, 0, 1}, {20, 0, kDim, 1}};
  const Step step = {StepKind::kContract, {0, 0, 50}, {0, 0, 40}, {0, 0, 40}, {}, 0, 0};
  OfPlaces(First(0b110), step, {products}).Check([](std::int64_t i, std::int64_t count) {
    return i % kSize < count && i / kSize % kSize < count;
  });
  OfPlaces(First(0b010), step, {products}).Check([](std::int64_t i, std::int64_t count) {
    return i / kSize % kSize < count;
  });
}

TEST_P(EachIsaPlaces, SumsOverNoPlaceAreZeros) {
  // Weights [S] times vectors [S, D].
  Form form;
  const std::int64_t sizes[] = {1, 1, kDim, kSize};
  std::copy_n(sizes, kLoops, form.sizes);
  form.strides = {{0, 0, 1, 0}, {0, 0, 0, 1}, {0, 0, 1, kDim}};
  OfPlaces sums(First(0b1000),
                {StepKind::kContract, {0, 0, kDim}, {0, 0, kSize}, {0, 0, kSize * kDim}, {}, 0, 0},
                {form});
  const Floats found = sums.Run();
  for (std::size_t row = 0; row < kNumIds.size(); ++row) {
    for (std::size_t column = 0; column < kDim; ++column) {
      double expected = 0;
      for (std::size_t k = 0; k < static_cast<std::size_t>(kCounts[row]); ++k) {
        expected +=
            double{sums.a[row * kSize + k]} * sums.b[row * kSize * kDim + k * kDim + column];
      }
      EXPECT_NEAR(found[row * kDim + column], expected, 1e-6) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaPlaces, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

TEST(PlacesTest, WrongStepsAreRefused) {
  constexpr std::int64_t kWidth = kHeads * kSize * kSize;
  const auto refused = [](const Step& step, const auto& change, std::vector<Form> forms = {}) {
    OfPlaces one(First(1), step, std::move(forms));
    EXPECT_EQ(one.Check(), "");
    change(&one.program);
    return one.Check() == "got a wrong step at position 0";
  };
  const Step gelu = Of(ElementwiseKind::kGelu, kWidth);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t number :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{3}, kWidth, kMost}) {
    EXPECT_TRUE(refused(gelu, [&](Program* program) { program->steps[0].index = number; }))
        << number;
  }
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{3}, kMost}) {
    EXPECT_TRUE(refused(gelu, [&](Program* program) { program->steps[0].extra = number; }))
        << number;
  }
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps.pop_back(); }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[0].a = {}; }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[0].a = {1, 0, 2}; }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[0].a = {9, 0, 1}; }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[0].out = {3, 0, 1}; }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[1] = program->steps[0]; }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[1].kind = StepKind::kDot; }));
  EXPECT_TRUE(refused(gelu, [](Program* program) { program->steps[1].a.width = 1; }));
  // Numbers of places that the step itself overwrites.
  EXPECT_TRUE(refused(gelu, [](Program* program) {
    program->buffers[0] = {BufferKind::kScratch, 0, 1};
    program->buffers[3] = {BufferKind::kScratch, 16, program->buffers[3].width};
  }));
  // Numbers that are computed together.
  for (const auto kind : {ElementwiseKind::kStandardize, ElementwiseKind::kSum}) {
    EXPECT_TRUE(refused(gelu, [&](Program* program) {
      program->steps[1].index = static_cast<std::int64_t>(kind);
      program->steps[1].extra = 1;
    }));
  }
  EXPECT_TRUE(refused(gelu, [](Program* program) {
    program->steps[1].index = static_cast<std::int64_t>(ElementwiseKind::kSoftmax);
    program->steps[1].extra = 1;
  }));
  // Pairs that there are not, and pairs of a form.
  EXPECT_TRUE(refused(gelu, [](Program* program) {
    program->steps[0].kind = StepKind::kFirstPairs;
    program->steps[0].index = kSize;
  }));
  Form form;
  form.sizes[3] = kSize;
  form.strides.out[3] = form.strides.a[3] = form.strides.b[3] = 1;
  const Step copy = {StepKind::kBroadcast, {0, 0, kSize}, {0, 0, kSize}, {}, {}, 0, 0};
  const auto of_form = [&](const auto& change) {
    OfPlaces one(First(0b1000), copy, {form});
    EXPECT_EQ(one.Check(), "");
    change(&one.program);
    return one.Check() == "got a wrong step at position 0";
  };
  for (const std::int64_t bits : {0, 16, 9, -8}) {
    EXPECT_TRUE(of_form([&](Program* program) { program->steps[0].index = bits; })) << bits;
  }
  EXPECT_TRUE(of_form([](Program* program) { program->steps[0].kind = StepKind::kFirstPairs; }));
  EXPECT_TRUE(of_form([](Program* program) { program->steps[0].extra = 3; }));
}

TEST(PlacesTest, SharesOfARow) {
  const Step gelu = Of(ElementwiseKind::kGelu, 50);
  EXPECT_EQ(ShareOf(First(1), gelu, 2), 0.4);
  EXPECT_EQ(ShareOf(First(1, StepKind::kFirstPairs), gelu, 5), 1);
  Step form = gelu;
  form.kind = StepKind::kContract;
  EXPECT_DOUBLE_EQ(ShareOf(First(0b110), form, 1), 0.04);
  EXPECT_DOUBLE_EQ(ShareOf(First(0b1000), form, 3), 0.6);
}

TEST(PlacesTest, PlacesAreWholeVectors) {
  OfPlaces one(First(4), {StepKind::kLinear, {0, 0, 20}, {0, 0, 20}, {}, {}, 0, 0});
  const Floats square(kDim * kDim);
  const Layer layer(square, nullptr, kDim, kDim, WeightType::kFloat32);
  ASSERT_EQ(one.Check(), "");
  BoundProgram bound;
  bound.program = &one.program;
  bound.weights = {layer.packed};
  EXPECT_EQ(CheckBound(bound), "");
  one.program.steps[0].index = 2;
  EXPECT_EQ(CheckBound(bound), "got places of 2 numbers, expected vectors of 4");
}

}  // namespace
}  // namespace recsys::ops
