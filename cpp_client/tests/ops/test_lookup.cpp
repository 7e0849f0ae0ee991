// Lookups of every row type and instruction set, against loops over single numbers; and reads of
// rows: every cache line once, and nothing beside the rows.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/probe.h"
#include "ops/kernels/kernels.h"

namespace recsys::ops {
namespace {

/// Halves of a few numbers, as bits.
constexpr std::uint16_t kHalves[] = {0x0000, 0x8000, 0x3c00, 0xb800,
                                     0x2e66, 0x0001, 0x83ff, 0x7bff};

float OfHalf(std::uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const float sign = (half & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

/// A table of random bytes whose scales, biases and halves are finite and of moderate size.
struct Table {
  Table(RowType given, std::int64_t columns, std::int64_t count, std::mt19937* random)
      : type(given), dim(columns), num_rows(count), row_bytes(RowBytes(given, columns)) {
    // The exact size, and not aligned: the address sanitizer sees what is read behind it.
    bytes.resize(static_cast<std::size_t>(num_rows * row_bytes));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>((*random)());
    for (std::int64_t row = 0; row < num_rows; ++row) {
      if (type == RowType::kFloat32) {
        std::uniform_real_distribution<float> draw(-1, 1);
        for (std::int64_t i = 0; i < dim; ++i) Put(row, 4 * i, draw(*random));
      } else if (type == RowType::kFloat16) {
        for (std::int64_t i = 0; i < dim; ++i) Put(row, 2 * i, kHalves[(*random)() % 7]);
      } else {
        for (std::int64_t i = 0; i < 2; ++i) Put(row, 2 * i, kHalves[(*random)() % 5]);
      }
    }
  }
  template <typename T>
  void Put(std::int64_t row, std::int64_t at, T value) {
    std::memcpy(bytes.data() + row * row_bytes + at, &value, sizeof(value));
  }
  template <typename T>
  T Get(std::int64_t row, std::int64_t at) const {
    T value;
    std::memcpy(&value, bytes.data() + row * row_bytes + at, sizeof(value));
    return value;
  }
  float At(std::int64_t row, std::int64_t i) const {
    if (type == RowType::kFloat32) return Get<float>(row, 4 * i);
    if (type == RowType::kFloat16) return OfHalf(Get<std::uint16_t>(row, 2 * i));
    const int bits = type == RowType::kInt8 ? 8 : type == RowType::kInt4 ? 4 : 2;
    const int code = Get<std::uint8_t>(row, 4 + i * bits / 8) >> (i * bits % 8) & ((1 << bits) - 1);
    return static_cast<float>(code) * OfHalf(Get<std::uint16_t>(row, 0)) +
           OfHalf(Get<std::uint16_t>(row, 2));
  }
  Slot SlotAt(std::int64_t column) const {
    return {bytes.data(), static_cast<std::uint64_t>(num_rows), type, dim, column};
  }

  RowType type;
  std::int64_t dim, num_rows, row_bytes;
  std::vector<std::uint8_t> bytes;
};

std::vector<Table> Int8Tables(int count, std::int64_t num_rows, std::mt19937* random) {
  std::vector<Table> tables;
  for (int i = 0; i < count; ++i) tables.emplace_back(RowType::kInt8, 64, num_rows, random);
  return tables;
}

struct Request {
  Request(const std::vector<Table>& tables, std::int64_t bags, std::mt19937* random)
      : num_bags(bags) {
    offsets.push_back(0);
    for (const Table& table : tables) {
      slots.push_back(table.SlotAt(width));
      slots.back().feature = static_cast<std::int64_t>(slots.size()) - 1;
      width += table.dim;
      for (std::int64_t bag = 0; bag < num_bags; ++bag) {
        const std::int64_t count = (*random)() % 5;
        for (std::int64_t i = 0; i < count; ++i) {
          ids.push_back(static_cast<std::int64_t>((*random)() % table.num_rows));
          weights.push_back(static_cast<float>((*random)() % 100) / 50 - 1);
        }
        offsets.push_back(static_cast<std::int64_t>(ids.size()));
      }
    }
  }
  Lookup Of(Pooling pooling, bool is_weighted) const {
    return {slots.data(),   static_cast<std::int64_t>(slots.size()), num_bags, ids.data(),
            offsets.data(), is_weighted ? weights.data() : nullptr,  pooling,  0,
            num_bags};
  }

  std::int64_t num_bags, width = 0;
  std::vector<Slot> slots;
  std::vector<std::int64_t> ids, offsets;
  std::vector<float> weights;
};

/// Finds the rows of all IDs, and pools them. Returns the position of the first ID out of range, or
/// -1.
std::int64_t LookUp(const Lookup& lookup, OutRows out) {
  const auto count = static_cast<std::size_t>(NumIds(lookup) + kRowsAhead);
  std::vector<const std::uint8_t*> rows(count, lookup.slots[0].rows);
  const std::int64_t wrong = ChosenKernels().find(lookup, rows.data());
  if (wrong < 0) ChosenKernels().pool(lookup, rows.data(), out);
  return wrong;
}

class EachIsaLooksUp : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaLooksUp, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

TEST_P(EachIsaLooksUp, BagsOfEveryTypeAndDimAreRight) {
  std::mt19937 random(1);
  for (const std::int64_t num_bags : {0, 1, 2, 48, 49}) {
    std::vector<Table> tables;
    for (const std::int64_t dim : {1, 2, 15, 16, 33, 64, 72, 200}) {
      tables.emplace_back(RowType::kFloat32, dim, 7, &random);
      tables.emplace_back(RowType::kFloat16, dim, 7, &random);
      tables.emplace_back(RowType::kInt8, (dim + 1) / 2 * 2, 30, &random);
      tables.emplace_back(RowType::kInt4, (dim + 3) / 4 * 4, 7, &random);
      tables.emplace_back(RowType::kInt2, (dim + 7) / 8 * 8, 7, &random);
    }
    const Request request(tables, num_bags, &random);
    for (const bool is_weighted : {false, true}) {
      for (const Pooling pooling : {Pooling::kSum, Pooling::kMean}) {
        std::vector<float> out(static_cast<std::size_t>(num_bags * request.width), -7);
        const Lookup lookup = request.Of(pooling, is_weighted);
        ASSERT_EQ(LookUp(lookup, {out.data(), request.width}), -1);
        for (std::size_t slot = 0; slot < tables.size(); ++slot) {
          const Table& table = tables[slot];
          for (std::int64_t bag = 0; bag < num_bags; ++bag) {
            const auto at =
                slot * static_cast<std::size_t>(num_bags) + static_cast<std::size_t>(bag);
            const std::int64_t from = request.offsets[at], to = request.offsets[at + 1];
            for (std::int64_t i = 0; i < table.dim; ++i) {
              double sum = 0;
              for (std::int64_t k = from; k < to; ++k) {
                const auto id = static_cast<std::size_t>(k);
                sum += double{table.At(request.ids[id], i)} *
                       (is_weighted ? request.weights[id] : 1.0F);
              }
              if (pooling == Pooling::kMean && to > from) sum /= static_cast<double>(to - from);
              const float found = out[static_cast<std::size_t>(bag * request.width +
                                                               request.slots[slot].column + i)];
              ASSERT_NEAR(found, sum, 1e-5 * (1 + std::fabs(sum)))
                  << "type " << static_cast<int>(table.type) << ", dim " << table.dim << ", bag "
                  << bag << " of " << num_bags;
            }
          }
        }
      }
    }
  }
}

TEST_P(EachIsaLooksUp, SlotsReadTheBagsOfTheirFeatures) {
  std::mt19937 random(5);
  std::vector<Table> tables;
  for (int i = 0; i < 4; ++i) tables.emplace_back(RowType::kInt8, 24, 60, &random);
  const Request every(tables, 50, &random);
  std::vector<float> all(static_cast<std::size_t>(50 * every.width));
  ASSERT_EQ(LookUp(every.Of(Pooling::kMean, true), {all.data(), every.width}), -1);
  // The same slots in another order, one of them left out.
  Request some = every;
  some.slots = {every.slots[3], every.slots[0], every.slots[2]};
  for (std::size_t i = 0; i < 3; ++i) some.slots[i].column = static_cast<std::int64_t>(i) * 24;
  std::vector<float> found(std::size_t{50} * 72);
  ASSERT_EQ(LookUp(some.Of(Pooling::kMean, true), {found.data(), 72}), -1);
  for (std::size_t bag = 0; bag < 50; ++bag) {
    for (std::size_t slot = 0; slot < 3; ++slot) {
      const auto feature = static_cast<std::size_t>(some.slots[slot].feature);
      EXPECT_EQ(std::memcmp(found.data() + bag * 72 + slot * 24,
                            all.data() + bag * 96 + feature * 24, 24 * sizeof(float)),
                0);
    }
  }
}

TEST_P(EachIsaLooksUp, SequencesHaveARowForEachId) {
  std::mt19937 random(2);
  std::vector<Table> tables;
  for (int i = 0; i < 3; ++i) tables.emplace_back(RowType::kInt8, 20, 9, &random);
  Request request(tables, 11, &random);
  for (Slot& slot : request.slots) slot.column = 0;
  std::vector<float> out(request.ids.size() * 20);
  ASSERT_EQ(LookUp(request.Of(Pooling::kNone, false), {out.data(), 20}), -1);
  for (std::size_t slot = 0; slot < 3; ++slot) {
    for (std::int64_t i = request.offsets[slot * 11]; i < request.offsets[slot * 11 + 11]; ++i) {
      for (std::int64_t column = 0; column < 20; ++column) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_NEAR(out[at * 20 + static_cast<std::size_t>(column)],
                    tables[slot].At(request.ids[at], column), 1e-4);
      }
    }
  }
}

/// The cases that Python's tests make (tests/cases/rows_of_ids.py): an ID, the rows of a table, and
/// the ID's row.
TEST_P(EachIsaLooksUp, MixedIdsReadTheRowsThatPythonGivesThem) {
  std::ifstream file(std::string(RECSYS_TEST_CASES) + "/rows_of_ids.txt");
  std::int64_t id = 0, num_rows = 0, expected = 0;
  int count = 0;
  for (; file >> id >> num_rows >> expected; ++count) {
    Slot slot;
    slot.num_rows = static_cast<std::uint64_t>(num_rows);
    slot.type = RowType::kFloat32;
    slot.dim = 1;
    slot.modulus = num_rows;
    slot.is_mixed = true;
    const std::int64_t offsets[] = {0, 1};
    Lookup lookup;
    lookup.slots = &slot;
    lookup.num_slots = lookup.num_bags = lookup.end_bag = 1;
    lookup.ids = &id;
    lookup.offsets = offsets;
    const std::uint8_t* rows[1 + kRowsAhead] = {};
    ASSERT_EQ(ChosenKernels().find(lookup, rows), -1);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows[0]) / 4, static_cast<std::uint64_t>(expected))
        << id << " of " << num_rows;
    EXPECT_EQ(RowOfId(slot, id), static_cast<std::uint64_t>(expected));
  }
  EXPECT_GT(count, 400);
}

TEST_P(EachIsaLooksUp, PartsOfABatchAreThoseOfTheWhole) {
  std::mt19937 random(3);
  std::vector<Table> tables;
  for (const RowType type : {RowType::kInt8, RowType::kInt4, RowType::kFloat16}) {
    tables.emplace_back(type, 40, 50, &random);
  }
  const Request request(tables, 30, &random);
  std::vector<float> whole(static_cast<std::size_t>(30 * request.width)), parts = whole;
  Lookup lookup = request.Of(Pooling::kSum, true);
  ASSERT_EQ(LookUp(lookup, {whole.data(), request.width}), -1);
  for (const auto& [first, end] : {std::pair(0, 1), {1, 17}, {17, 17}, {17, 30}}) {
    lookup.first_bag = first;
    lookup.end_bag = end;
    const OutRows to{parts.data() + first * request.width, request.width};
    ASSERT_EQ(LookUp(lookup, to), -1);
  }
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0);
}

TEST_P(EachIsaLooksUp, IdsOutOfRangeAreNamedByTheirPositionAndReadNothing) {
  std::mt19937 random(4);
  const std::vector<Table> tables = Int8Tables(2, 5, &random);
  for (const std::int64_t wrong : {std::int64_t{5}, std::int64_t{-1}, INT64_MIN, INT64_MAX}) {
    Request request(tables, 20, &random);
    const std::size_t at = request.ids.size() - 3;
    request.ids[at] = wrong;
    std::vector<float> out(static_cast<std::size_t>(20 * request.width));
    EXPECT_EQ(LookUp(request.Of(Pooling::kSum, false), {out.data(), request.width}),
              static_cast<std::int64_t>(at));
  }
}

TEST_P(EachIsaLooksUp, OfSeveralIdsOutOfRangeTheFirstIsNamed) {
  std::mt19937 random(6);
  const std::vector<Table> tables = Int8Tables(3, 5, &random);
  const Request right(tables, 20, &random);
  std::vector<float> out(static_cast<std::size_t>(20 * right.width));
  for (std::size_t at = 0; at < right.ids.size(); ++at) {
    Request request = right;
    request.ids[at] = -1;
    request.ids.back() = 5;
    EXPECT_EQ(LookUp(request.Of(Pooling::kSum, false), {out.data(), request.width}),
              static_cast<std::int64_t>(at));
  }
}

TEST_P(EachIsaLooksUp, BatchesOfManyBagsAreRight) {
  std::mt19937 random(7);
  const std::vector<Table> tables = Int8Tables(3, 500, &random);
  Request request(tables, 4000, &random);
  std::vector<float> whole(static_cast<std::size_t>(4000 * request.width)), row(whole);
  const Lookup lookup = request.Of(Pooling::kSum, false);
  ASSERT_EQ(LookUp(lookup, {whole.data(), request.width}), -1);
  for (Lookup one = lookup; one.first_bag < lookup.end_bag; ++one.first_bag) {
    one.end_bag = one.first_bag + 1;
    const OutRows to = {row.data() + one.first_bag * request.width, request.width};
    ASSERT_EQ(LookUp(one, to), -1);
  }
  EXPECT_EQ(std::memcmp(whole.data(), row.data(), whole.size() * sizeof(float)), 0);
  request.ids[static_cast<std::size_t>(lookup.offsets[3900])] = 500;
  EXPECT_EQ(LookUp(lookup, {whole.data(), request.width}), lookup.offsets[3900]);
}

TEST(Probe, ReadsEveryRowWhateverIsPrefetched) {
  // The exact size: the address sanitizer sees what is read behind it.
  std::vector<std::uint8_t> data(1000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * 37 + 11);
  std::vector<std::int64_t> offsets, sizes;
  std::uint8_t expected = 0;
  for (std::int64_t at = 999; at >= 0; at -= 7) {
    offsets.push_back(at);
    sizes.push_back(1);
    expected ^= data[static_cast<std::size_t>(at)];
  }
  const auto count = static_cast<std::int64_t>(offsets.size());
  for (const std::int64_t ahead : {0, 1, 16, 1000}) {
    EXPECT_EQ(ReadRows(data.data(), offsets.data(), sizes.data(), count, ahead), expected);
  }
}

TEST(Probe, ReadsOneByteOfEachCacheLine) {
  alignas(64) std::uint8_t data[256] = {};
  data[60] = 1;
  data[64] = 2;
  data[128] = 4;
  data[61] = data[129] = data[192] = 8;
  const std::int64_t offset = 60, size = 70, none = 0;
  EXPECT_EQ(ReadRows(data, &offset, &size, 1, 0), 7);
  EXPECT_EQ(ReadRows(data, &offset, &none, 1, 16), 0);
  EXPECT_EQ(ReadRows(data, &offset, &size, 0, 16), 0);
}

}  // namespace
}  // namespace recsys::ops
