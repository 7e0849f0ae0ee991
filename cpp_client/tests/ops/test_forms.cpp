// Steps by a form, and steps that move numbers: on every instruction set against loops, and forms
// that are wrong.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/program/program.h"

namespace recsys::ops {
namespace {

using Floats = std::vector<float>;

Floats Numbers(std::int64_t count, std::mt19937* random, float most = 1) {
  std::uniform_real_distribution<float> draw(-most, most);
  Floats numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = draw(*random);
  return numbers;
}

/// Products of G matrices [M, K] and [K, N]; the second ones are given as [N, K] if `is_turned`.
Form FormOf(std::int64_t g, std::int64_t m, std::int64_t n, std::int64_t k, bool is_turned) {
  Form form;
  const std::int64_t sizes[] = {g, m, n, k};
  std::copy_n(sizes, 4, form.sizes);
  form.strides = {
      {m * n, n, 1, 0}, {m * k, k, 0, 1}, {n * k, 0, is_turned ? k : 1, is_turned ? 1 : n}};
  return form;
}

Floats Contracted(const Kernels& kernels, const Form& form, const Floats& a, const Floats& b,
                  std::int64_t num_rows) {
  const std::int64_t width = form.sizes[0] * form.sizes[1] * form.sizes[2];
  Floats out(static_cast<std::size_t>(num_rows * width), -7);
  Formed step;
  step.form = &form;
  step.a = {a.data(), static_cast<std::int64_t>(a.size()) / num_rows};
  step.b = {b.data(), static_cast<std::int64_t>(b.size()) / num_rows};
  step.num_rows = num_rows;
  kernels.contract(step, {out.data(), width});
  return out;
}

constexpr std::int64_t kShapes[][4] = {{1, 1, 1, 1},   {2, 3, 5, 7},    {1, 13, 16, 4},
                                       {3, 6, 33, 17}, {1, 40, 48, 32}, {2, 1, 64, 50}};

class EachIsaForms : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaForms, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

TEST_P(EachIsaForms, SumsOfProductsAreThoseOfLoops) {
  std::mt19937 random(1);
  for (const auto& [g, m, n, k] : kShapes) {
    for (const bool is_turned : {false, true}) {
      const Form form = FormOf(g, m, n, k, is_turned);
      const std::int64_t num_rows = 2;
      const Floats a = Numbers(num_rows * g * m * k, &random);
      const Floats b = Numbers(num_rows * g * k * n, &random);
      const Floats found = Contracted(ChosenKernels(), form, a, b, num_rows);
      std::size_t at = 0;
      for (std::int64_t matrix = 0; matrix < num_rows * g; ++matrix) {
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j, ++at) {
            double sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              const auto of_a = static_cast<std::size_t>(matrix * m * k + i * k + l);
              const auto of_b = static_cast<std::size_t>(matrix * n * k + j * form.strides.b[2] +
                                                         l * form.strides.b[3]);
              sum += static_cast<double>(a[of_a]) * static_cast<double>(b[of_b]);
            }
            ASSERT_NEAR(found[at], sum, 1e-5) << g << m << n << k << is_turned;
          }
        }
      }
    }
  }
}

TEST_P(EachIsaForms, ARowHasTheSameBitsInEveryBatch) {
  std::mt19937 random(2);
  for (const auto& [g, m, n, k] : kShapes) {
    const Form form = FormOf(g, m, n, k, true);
    const Floats a = Numbers(3 * g * m * k, &random), b = Numbers(3 * g * k * n, &random);
    const Floats whole = Contracted(ChosenKernels(), form, a, b, 3);
    const Floats last = Contracted(ChosenKernels(), form, {a.end() - g * m * k, a.end()},
                                   {b.end() - g * k * n, b.end()}, 1);
    ASSERT_TRUE(std::equal(last.begin(), last.end(), whole.end() - g * m * n));
  }
}

TEST_P(EachIsaForms, OperandsAreRepeatedAndTurned) {
  std::mt19937 random(3);
  const std::int64_t rows = 5, columns = 18;
  Form form;
  form.factor = 3;
  // The first operand is [rows], the second [columns, rows].
  form.sizes[2] = rows;
  form.sizes[3] = columns;
  form.strides = {{0, 0, columns, 1}, {0, 0, 1, 0}, {0, 0, 1, rows}};
  Floats a = Numbers(rows, &random);
  a[1] = 0;
  const Floats b = Numbers(rows * columns, &random);
  const auto check = [&](ElementwiseKind kind, const auto& expected) {
    Floats out(static_cast<std::size_t>(rows * columns));
    ChosenKernels().broadcast({&form, kind, {a.data(), 0}, {b.data(), 0}, 1},
                              {out.data(), rows * columns});
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        EXPECT_EQ(
            out[static_cast<std::size_t>(i * columns + j)],
            expected(a[static_cast<std::size_t>(i)], b[static_cast<std::size_t>(j * rows + i)]));
      }
    }
  };
  check(ElementwiseKind::kCopy, [](float x, float) { return x; });
  check(ElementwiseKind::kAdd, [](float x, float y) { return x + y; });
  check(ElementwiseKind::kSubtract, [](float x, float y) { return x - y; });
  check(ElementwiseKind::kMultiply, [](float x, float y) { return x * y; });
  check(ElementwiseKind::kLess, [](float x, float y) { return x < y ? 1.0F : 0.0F; });
  check(ElementwiseKind::kLargest, [](float x, float y) { return x < y ? y : x; });
  check(ElementwiseKind::kSelect, [](float x, float y) { return x != 0 ? y : 3.0F; });
}

float Of(ElementwiseKind kind, float number, float factor = 0) {
  Elementwise step;
  step.kind = kind;
  step.a = step.b = step.c = {&number, 1};
  step.num_rows = step.width = 1;
  step.factor = factor;
  float out = 0;
  ChosenKernels().elementwise(step, {&out, 1});
  return out;
}

TEST_P(EachIsaForms, FunctionsOfANumberAreThoseOfTheLibrary) {
  for (float x = -20; x < 20; x += 0.0371F) {
    const double y = x;
    EXPECT_NEAR(Of(ElementwiseKind::kExp, x), std::exp(y), 3e-7 * std::exp(y)) << x;
    EXPECT_NEAR(Of(ElementwiseKind::kTanh, x), std::tanh(y), 3e-7 * std::abs(std::tanh(y))) << x;
    EXPECT_NEAR(Of(ElementwiseKind::kSilu, x), y / (1 + std::exp(-y)), 3e-7 * std::abs(y)) << x;
    EXPECT_NEAR(Of(ElementwiseKind::kElu, x, 0.7F), x > 0 ? y : 0.7F * std::expm1(y),
                4e-7 * std::abs(std::expm1(std::min(y, 0.0))))
        << x;
    EXPECT_NEAR(Of(ElementwiseKind::kGelu, x), y * (1 + std::erf(y * M_SQRT1_2)) / 2,
                3e-7 * std::abs(y) + 1e-9)
        << x;
    const double cubed = 0.79788456080286536 * (y + 0.044715 * y * y * y);
    EXPECT_NEAR(Of(ElementwiseKind::kGeluTanh, x), y * (1 + std::tanh(cubed)) / 2,
                3e-7 * std::abs(y) + 1e-9)
        << x;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Of(ElementwiseKind::kExp, -infinity), 0);
  EXPECT_EQ(Of(ElementwiseKind::kExp, infinity), infinity);
  EXPECT_TRUE(std::isnan(Of(ElementwiseKind::kExp, std::nanf(""))));
  EXPECT_TRUE(std::isnan(Of(ElementwiseKind::kTanh, std::nanf(""))));
  EXPECT_EQ(Of(ElementwiseKind::kTanh, -infinity), -1);
  EXPECT_EQ(Of(ElementwiseKind::kAtMost, 3, 2), 2);
  EXPECT_EQ(Of(ElementwiseKind::kShift, 3, 2), 5);
  EXPECT_EQ(Of(ElementwiseKind::kLeakyRelu, -3, 0.5F), -1.5F);
  for (const float x : {-1e-3F, -1e-6F, -1e-20F, -0.0F}) {
    EXPECT_NEAR(Of(ElementwiseKind::kElu, x, 1), std::expm1(double{x}), 3e-7 * std::abs(x)) << x;
  }
  const float largest = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isnan(Of(ElementwiseKind::kElu, std::nanf(""), 2)));
  EXPECT_EQ(Of(ElementwiseKind::kElu, -infinity, 2), -2);
  EXPECT_EQ(Of(ElementwiseKind::kElu, -largest, 2), -2);
  EXPECT_EQ(Of(ElementwiseKind::kElu, infinity, 2), infinity);
  EXPECT_EQ(Of(ElementwiseKind::kElu, largest, 2), largest);
  EXPECT_EQ(Of(ElementwiseKind::kTruncate, -3.7F), -3);
  EXPECT_EQ(Of(ElementwiseKind::kAbsolute, -3.7F), 3.7F);
  EXPECT_EQ(Of(ElementwiseKind::kLog2, 8), 3);
}

TEST_P(EachIsaForms, SharesOfRunsSumToOne) {
  std::mt19937 random(4);
  const std::int64_t count = 3, length = 21;
  Floats a = Numbers(count * length, &random, 30);
  a[4] = -std::numeric_limits<float>::infinity();
  Floats out(a.size());
  Elementwise step;
  step.kind = ElementwiseKind::kSoftmax;
  step.a = step.b = step.c = {a.data(), count * length};
  step.num_rows = 1;
  step.width = count * length;
  step.count = count;
  ChosenKernels().elementwise(step, {out.data(), step.width});
  EXPECT_EQ(out[4], 0);
  for (std::int64_t run = 0; run < count; ++run) {
    double sum = 0, found = 0;
    for (std::int64_t i = run * length; i < (run + 1) * length; ++i) {
      sum += std::exp(static_cast<double>(a[static_cast<std::size_t>(i)]));
      found += static_cast<double>(out[static_cast<std::size_t>(i)]);
    }
    EXPECT_NEAR(found, 1, 1e-6);
    const auto first = static_cast<std::size_t>(run * length);
    EXPECT_NEAR(out[first], std::exp(static_cast<double>(a[first])) / sum, 1e-6);
  }
}

TEST_P(EachIsaForms, SharesOfNothingAreZeros) {
  Floats a(20, -std::numeric_limits<float>::infinity()), out(20, 7);
  a[13] = 1;
  Elementwise step;
  step.kind = ElementwiseKind::kSoftmaxOrZeros;
  step.a = step.b = step.c = {a.data(), 20};
  step.num_rows = 1;
  step.width = 20;
  step.count = 2;
  ChosenKernels().elementwise(step, {out.data(), 20});
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(out[i], i == 13 ? 1 : 0) << i;
}

/// A program of a sequence of three vectors, its length, its differences, and the vector by a
/// number.
struct Moved {
  Moved() {
    program.buffers = {{BufferKind::kScratch, 0, 12},
                       {BufferKind::kOutput, 0, 12},
                       {BufferKind::kOutput, 1, 1},
                       {BufferKind::kOutput, 2, 9},
                       {BufferKind::kOutput, 3, 4}};
    program.lookups = {{0, 1, 0, 1, -1, 2, 1}};
    program.features = {{0, 1, 1, 0}};
    program.steps = {{StepKind::kSequence, {1, 0, 12}, {}, {}, {}, 0, 0},
                     {StepKind::kLength, {2, 0, 1}, {}, {}, {}, 0, 0},
                     {StepKind::kDifferences, {3, 0, 9}, {}, {}, {}, 0, 3},
                     {StepKind::kTake, {4, 0, 4}, {2, 0, 1}, {1, 0, 12}, {}, 0, 4}};
    program.num_outputs = 4;
  }

  std::string Check() { return CheckProgram(2, 2, &program); }

  Program program;
};

TEST_P(EachIsaForms, SequencesAreReadInEachOrder) {
  Floats table(40);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i / 4);
  const std::vector<std::int64_t> ids = {7, 3, 9, 5, 8}, offsets = {0, 1, 5, 5};
  Slot slot{reinterpret_cast<const std::uint8_t*>(table.data()), 10, RowType::kFloat32, 4, 0};
  const Floats by_order[] = {
      {7, 0, 0, 3, 9, 5, 0, 0, 0}, {7, 0, 0, 8, 5, 9, 0, 0, 0}, {7, 0, 0, 9, 5, 8, 0, 0, 0}};
  for (std::int64_t order = 0; order < kNumSequenceOrder; ++order) {
    Moved moved;
    moved.program.steps[0].extra = order;
    ASSERT_EQ(moved.Check(), "");
    Floats sequence(36), length(3), differences(27), taken(12);
    BoundProgram bound;
    bound.program = &moved.program;
    bound.reads.resize(5);
    bound.writes = {
        {}, {sequence.data(), 12}, {length.data(), 1}, {differences.data(), 9}, {taken.data(), 4}};
    Lookup lookup;
    lookup.slots = &slot;
    lookup.num_slots = 1;
    lookup.num_bags = 3;
    lookup.ids = ids.data();
    lookup.offsets = offsets.data();
    lookup.pooling = Pooling::kNone;
    bound.lookups = {lookup};
    bound.features = {{ids.data(), offsets.data()}};
    ASSERT_EQ(CheckBound(bound), "");
    EXPECT_EQ(RunProgram(bound, ChosenKernels(), 0, 3).lookup, -1);
    const Floats& expected = by_order[order];
    for (std::size_t i = 0; i < 36; ++i) EXPECT_EQ(sequence[i], expected[i / 4]) << i;
    EXPECT_EQ(length, (Floats{1, 4, 0}));
    EXPECT_EQ((Floats{differences.begin() + 9, differences.begin() + 18}),
              (Floats{0, -6, -2, 6, 0, 4, 2, -4, 0}));
    EXPECT_EQ(differences[1], 7);
    // By their numbers 1, 4 and 0, of three.
    EXPECT_EQ(taken[0], expected[1]);
    EXPECT_EQ(taken[4], expected[5]);
    EXPECT_EQ(taken[8], expected[6]);
  }
}

TEST(FormsTest, WrongStepsAreRefused) {
  const auto with = [](std::size_t step, const auto& change) {
    Moved moved;
    change(&moved.program.steps[step], &moved.program);
    return moved.Check();
  };
  EXPECT_EQ(with(0, [](Step* step, Program*) { step->extra = 3; }),
            "got a wrong step at position 0");
  EXPECT_EQ(with(0, [](Step*, Program* program) { program->lookups[0].pooling = 0; }),
            "got a wrong step at position 0");
  EXPECT_EQ(with(1, [](Step* step, Program*) { step->index = 1; }),
            "got a wrong step at position 1");
  EXPECT_EQ(with(1, [](Step*, Program* program) { program->features[0].feature = 1; }),
            "got a wrong feature at position 0");
  EXPECT_EQ(with(2, [](Step* step, Program*) { step->extra = 2; }),
            "got a wrong step at position 2");
  EXPECT_EQ(with(3, [](Step* step, Program*) { step->extra = 5; }),
            "got a wrong step at position 3");
  // What it writes it would read.
  EXPECT_EQ(with(3,
                 [](Step* step, Program*) {
                   step->out = {1, 0, 4};
                 }),
            "got a wrong step at position 3");
}

TEST(FormsTest, WrongFormsAreRefused) {
  Program program;
  program.buffers = {
      {BufferKind::kInput, 0, 6}, {BufferKind::kInput, 1, 12}, {BufferKind::kOutput, 0, 8}};
  program.num_outputs = 1;
  program.forms = {FormOf(1, 2, 4, 3, false)};
  program.steps = {{StepKind::kContract, {2, 0, 8}, {0, 0, 6}, {1, 0, 12}, {}, 0, 0}};
  const auto check = [](Program of) { return CheckProgram(2, 0, &of); };
  EXPECT_EQ(check(program), "");
  const auto with = [&](const auto& change) {
    Program changed = program;
    change(&changed.forms[0]);
    return check(changed);
  };
  const std::string wrong_step = "got a wrong step at position 0";
  EXPECT_EQ(with([](Form* form) { form->sizes[1] = 3; }), wrong_step);
  EXPECT_EQ(with([](Form* form) { form->sizes[3] = 4; }), wrong_step);
  EXPECT_EQ(with([](Form* form) { form->strides.b[2] = 2; }), wrong_step);
  EXPECT_EQ(with([](Form* form) { form->strides.out[3] = 1; }), wrong_step);
  EXPECT_EQ(with([](Form* form) { form->sizes[0] = 0; }), "got a wrong form at position 0");
  EXPECT_EQ(with([](Form* form) { form->strides.a[1] = -1; }), "got a wrong form at position 0");
  EXPECT_EQ(with([](Form* form) { std::fill_n(form->sizes, 4, 1 << 23); }),
            "got a wrong form at position 0");
  Program other = program;
  other.steps[0].index = 1;
  EXPECT_EQ(check(other), wrong_step);
  other = program;
  other.steps[0].kind = StepKind::kBroadcast;
  other.steps[0].extra = static_cast<std::int64_t>(ElementwiseKind::kRelu);
  EXPECT_EQ(check(other), wrong_step);
}

}  // namespace
}  // namespace recsys::ops
