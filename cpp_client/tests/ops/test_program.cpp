// Programs on every instruction set, against the same steps as whole batches; and programs that are
// wrong.

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

constexpr std::int64_t kNumDense = 5, kDim = 6, kNumSlots = 3, kTableRows = 50;
constexpr std::int64_t kNumVectors = kNumSlots + 1, kNumPairs = kNumVectors * (kNumVectors - 1) / 2;
constexpr std::int64_t kJoined = kDim + kNumPairs;

using Floats = std::vector<float>;

Floats Numbers(std::int64_t count, std::mt19937* random) {
  std::uniform_real_distribution<float> draw(-1, 1);
  Floats numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = draw(*random);
  return numbers;
}

/// Packed weights on a cache line.
class Layer {
 public:
  Layer(std::int64_t num_outputs, std::int64_t num_inputs, std::mt19937* random)
      : weight(Numbers(num_outputs * num_inputs, random)), bias(Numbers(num_outputs, random)) {
    const std::vector<char> bytes =
        Pack(weight.data(), bias.data(), num_outputs, num_inputs, WeightType::kFloat32);
    memory_.resize(bytes.size() + 64);
    char* const at = memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64);
    std::memcpy(at, bytes.data(), bytes.size());
    EXPECT_EQ(ReadPacked(at, static_cast<std::int64_t>(bytes.size()), &packed), "");
  }

  Floats weight, bias;
  Packed packed;

 private:
  std::vector<char> memory_;
};

/// Appends the numbers that items are.
template <typename Item>
void Append(const std::vector<Item>& items, std::vector<std::int64_t>* numbers) {
  const std::size_t begin = numbers->size();
  numbers->resize(begin + items.size() * sizeof(Item) / sizeof(std::int64_t));
  std::memcpy(numbers->data() + begin, items.data(), items.size() * sizeof(Item));
}

/// Returns a program without forms and features as files hold it.
std::vector<std::int64_t> NumbersOf(const Program& program) {
  std::vector<std::int64_t> numbers = {3, static_cast<std::int64_t>(program.buffers.size()),
                                       static_cast<std::int64_t>(program.lookups.size()),
                                       static_cast<std::int64_t>(program.steps.size())};
  Append(program.buffers, &numbers);
  Append(program.lookups, &numbers);
  Append(program.steps, &numbers);
  return numbers;
}

/// A DLRM: a layer, a lookup, an interaction, and a layer with a sigmoid.
struct Dlrm {
  explicit Dlrm(std::int64_t rows) : num_rows(rows), dense(Numbers(rows * kNumDense, &random)) {
    table = Numbers(kTableRows * kDim, &random);
    offsets.push_back(0);
    for (std::int64_t bag = 0; bag < kNumSlots * num_rows; ++bag) {
      for (std::uint32_t i = random() % 4; i > 0; --i) {
        ids.push_back(static_cast<std::int64_t>(random() % kTableRows));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    for (std::int64_t i = 0; i < kNumSlots; ++i) {
      slots.push_back({reinterpret_cast<const std::uint8_t*>(table.data()), kTableRows,
                       RowType::kFloat32, kDim, i * kDim});
      slots.back().feature = i;
    }
    program.buffers = {{BufferKind::kInput, 0, kNumDense},
                       {BufferKind::kScratch, 0, kNumVectors * kDim},
                       {BufferKind::kScratch, ScratchWidth(kNumVectors * kDim), kJoined},
                       {BufferKind::kOutput, 0, 1}};
    program.lookups = {{0, 1, 1, 2, -1, 0, kNumSlots}};
    const Place first{1, 0, kDim};
    program.steps = {
        {StepKind::kLinear, first, {0, 0, kNumDense}, {}, {}, 0, 1},
        {StepKind::kLookup, {1, kDim, kNumSlots * kDim}, {}, {}, {}, 0, 0},
        {StepKind::kElementwise, {2, 0, kDim}, first, {}, {}, 0, 1},
        {StepKind::kDot, {2, kDim, kNumPairs}, {1, 0, kNumVectors * kDim}, {}, {}, 0, kDim},
        {StepKind::kLinear, {3, 0, 1}, {2, 0, kJoined}, {}, {}, 1, 2},
    };
  }

  /// Returns the scores of rows `first` to `end`, by the program as it is read from its numbers.
  Floats Scores(std::int64_t first, std::int64_t end, WrongId* wrong = nullptr) {
    const std::vector<std::int64_t> numbers = NumbersOf(program);
    Program read;
    EXPECT_EQ(ReadProgram(numbers.data(), static_cast<std::int64_t>(numbers.size()), 3, 2, &read),
              "");
    Floats scores(static_cast<std::size_t>(num_rows), -1);
    BoundProgram bound;
    bound.program = &read;
    bound.reads = {{dense.data(), kNumDense}, {}, {}, {}};
    bound.writes = {{}, {}, {}, {scores.data(), 1}};
    bound.weights = {bottom.packed, top.packed};
    Lookup lookup;
    lookup.slots = slots.data();
    lookup.num_slots = kNumSlots;
    lookup.num_bags = num_rows;
    lookup.ids = ids.data();
    lookup.offsets = offsets.data();
    bound.lookups = {lookup};
    EXPECT_EQ(CheckBound(bound), "");
    const WrongId found = RunProgram(bound, ChosenKernels(), first, end);
    if (wrong != nullptr) *wrong = found;
    return scores;
  }

  double Score(std::int64_t row) const {
    std::vector<double> vectors(kNumVectors * kDim);
    for (std::int64_t i = 0; i < kDim; ++i) {
      double sum = bottom.bias[static_cast<std::size_t>(i)];
      for (std::int64_t k = 0; k < kNumDense; ++k) {
        sum += dense[static_cast<std::size_t>(row * kNumDense + k)] *
               bottom.weight[static_cast<std::size_t>(i * kNumDense + k)];
      }
      vectors[static_cast<std::size_t>(i)] = std::max(sum, 0.0);
    }
    for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
      const auto bag = static_cast<std::size_t>(slot * num_rows + row);
      for (std::int64_t k = offsets[bag]; k < offsets[bag + 1]; ++k) {
        for (std::int64_t i = 0; i < kDim; ++i) {
          vectors[static_cast<std::size_t>((slot + 1) * kDim + i)] +=
              table[static_cast<std::size_t>(ids[static_cast<std::size_t>(k)] * kDim + i)];
        }
      }
    }
    std::vector<double> joined(vectors.begin(), vectors.begin() + kDim);
    for (std::int64_t i = 0; i < kNumVectors; ++i) {
      for (std::int64_t j = i + 1; j < kNumVectors; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < kDim; ++k) {
          sum += vectors[static_cast<std::size_t>(i * kDim + k)] *
                 vectors[static_cast<std::size_t>(j * kDim + k)];
        }
        joined.push_back(sum);
      }
    }
    double sum = top.bias[0];
    for (std::size_t i = 0; i < joined.size(); ++i) sum += joined[i] * top.weight[i];
    return 1 / (1 + std::exp(-sum));
  }

  std::mt19937 random{7};
  std::int64_t num_rows;
  Floats dense, table;
  std::vector<std::int64_t> ids, offsets;
  std::vector<Slot> slots;
  Layer bottom{kDim, kNumDense, &random}, top{1, kJoined, &random};
  Program program;
};

class EachIsaPrograms : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

TEST_P(EachIsaPrograms, RowsAreScoredAsByLoops) {
  for (const std::int64_t num_rows : {0, 1, 2, 5, 48, 49, 200}) {
    Dlrm model(num_rows);
    const Floats scores = model.Scores(0, num_rows);
    for (std::int64_t row = 0; row < num_rows; ++row) {
      ASSERT_NEAR(scores[static_cast<std::size_t>(row)], model.Score(row), 1e-5) << row;
    }
  }
}

TEST_P(EachIsaPrograms, ARowHasTheSameBitsInEveryBatch) {
  Dlrm model(200);
  const Floats whole = model.Scores(0, 200);
  for (const std::int64_t row : {0, 1, 47, 48, 130, 199}) {
    EXPECT_EQ(model.Scores(row, row + 1)[static_cast<std::size_t>(row)],
              whole[static_cast<std::size_t>(row)]);
  }
}

TEST_P(EachIsaPrograms, IdsOutOfRangeStopIt) {
  for (const std::int64_t row : {0, 60, 199}) {
    Dlrm model(200);
    // The first bag from there on that has an ID.
    auto bag = static_cast<std::size_t>(200 + row);
    while (model.offsets[bag] == model.offsets[bag + 1]) ++bag;
    const std::int64_t position = model.offsets[bag];
    model.ids[static_cast<std::size_t>(position)] = kTableRows;
    WrongId wrong;
    model.Scores(0, 200, &wrong);
    EXPECT_EQ(wrong.lookup, 0);
    EXPECT_EQ(wrong.position, position);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaPrograms, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

TEST(ProgramTest, WrongNumbersAreRefused) {
  const std::vector<std::int64_t> right = NumbersOf(Dlrm(1).program);
  Program program;
  const auto read = [&program](const std::vector<std::int64_t>& numbers) {
    return ReadProgram(numbers.data(), static_cast<std::int64_t>(numbers.size()), 3, 2, &program);
  };
  EXPECT_EQ(read(right), "");
  EXPECT_EQ(read({}), "got numbers that are no program of version 5");
  std::vector<std::int64_t> shorter = right;
  shorter.pop_back();
  EXPECT_EQ(read(shorter),
            "got " + std::to_string(shorter.size()) + " numbers, which are not those of a program");
  const auto changed = [&](std::size_t at, std::int64_t number) {
    std::vector<std::int64_t> numbers = right;
    numbers[at] = number;
    return read(numbers);
  };
  // The first buffer: its kind, its index, its width.
  EXPECT_EQ(changed(4, 9), "got a wrong buffer at position 0");
  EXPECT_EQ(changed(5, 3), "got a wrong buffer at position 0");
  EXPECT_EQ(changed(6, 0), "got a wrong buffer at position 0");
  Program with_norm = Dlrm(1).program;
  with_norm.steps[2].index = static_cast<std::int64_t>(ElementwiseKind::kNorm);
  with_norm.steps[2].extra = 2;
  EXPECT_EQ(read(NumbersOf(with_norm)), "got a wrong step at position 2");
  with_norm.steps[2].out.width = 1;
  EXPECT_EQ(read(NumbersOf(with_norm)), "got a wrong step at position 2");
  with_norm.steps[2].extra = with_norm.steps[2].a.width;
  EXPECT_EQ(read(NumbersOf(with_norm)), "");
  // The lookup's rows, its pooling, and its number of features.
  EXPECT_EQ(changed(16, 2), "got a wrong lookup at position 0");
  EXPECT_EQ(changed(21, 3), "got a wrong lookup at position 0");
  EXPECT_EQ(changed(22, 0), "got a wrong lookup at position 0");
  // The first step: where it writes, and its constant.
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{4}, std::int64_t{-1}}) {
    EXPECT_EQ(changed(24, number), "got a wrong step at position 0") << number;
  }
  EXPECT_EQ(changed(25, std::numeric_limits<std::int64_t>::max()),
            "got a wrong step at position 0");
  // A place that it does not read.
  EXPECT_EQ(changed(32, 6), "got a wrong step at position 0");
  EXPECT_EQ(changed(36, 2), "got a wrong step at position 0");
}

}  // namespace
}  // namespace recsys::ops
