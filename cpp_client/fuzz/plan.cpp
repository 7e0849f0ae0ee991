// Fuzzes the numbers of a program and the bytes of packed weights: what is read as right must run
// without leaving its tensors.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ops/packed.h"
#include "ops/program/program.h"

namespace {

using recsys::ops::BoundProgram;
using recsys::ops::BufferKind;

constexpr std::int64_t kNumRows = 3, kNumInputs = 3, kNumSlots = 2;
/// Weights of these shapes are constants: N by K.
constexpr std::int64_t kShapes[][2] = {{4, 5}, {1, 4}, {9, 12}};
constexpr std::int64_t kMostWidth = 512, kMostScratch = 1 << 14;

/// Returns the number that some bytes say: one byte for small ones.
std::int64_t Take(const std::uint8_t** at, const std::uint8_t* end) {
  if (*at == end) return 0;
  const auto small = static_cast<std::int8_t>(*(*at)++);
  if (small != 127 || end - *at < 8) return small;
  std::int64_t number = 0;
  std::memcpy(&number, *at, sizeof(number));
  *at += sizeof(number);
  return number;
}

/// Packed weights, aligned as kernels read them.
struct Weights {
  alignas(64) char bytes[4096];
  recsys::ops::Packed packed;
};

void Pack(std::int64_t num_outputs, std::int64_t num_inputs, recsys::ops::WeightType type,
          Weights* weights) {
  const std::vector<float> numbers(static_cast<std::size_t>(num_outputs * num_inputs), 0.5F);
  const std::vector<char> bytes =
      recsys::ops::Pack(numbers.data(), nullptr, num_outputs, num_inputs, type);
  std::memcpy(weights->bytes, bytes.data(), bytes.size());
  const std::string error = recsys::ops::ReadPacked(
      weights->bytes, static_cast<std::int64_t>(bytes.size()), &weights->packed);
  if (!error.empty()) __builtin_trap();
}

void ReadWeights(const std::uint8_t* bytes, std::size_t size) {
  alignas(64) static char aligned[1 << 16];
  if (size > sizeof(aligned)) return;
  std::memcpy(aligned, bytes, size);
  recsys::ops::Packed packed;
  if (!recsys::ops::ReadPacked(aligned, static_cast<std::int64_t>(size), &packed).empty()) return;
  std::vector<float> in(static_cast<std::size_t>(packed.num_inputs), 1);
  std::vector<float> out(static_cast<std::size_t>(packed.num_outputs));
  recsys::ops::ChosenKernels().linear(packed, {in.data(), packed.num_inputs}, 1,
                                      recsys::ops::Activation::kNone,
                                      {out.data(), packed.num_outputs}, nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  ReadWeights(bytes, size);
  std::vector<std::int64_t> numbers;
  for (const std::uint8_t* at = bytes; at != bytes + size;) {
    numbers.push_back(Take(&at, bytes + size));
  }
  static Weights weights[3];
  constexpr auto kNumConstants = static_cast<std::int64_t>(std::size(weights));
  for (int i = 0; i < 3; ++i) {
    Pack(kShapes[i][0], kShapes[i][1], static_cast<recsys::ops::WeightType>(i), &weights[i]);
  }
  recsys::ops::Program program;
  const auto count = static_cast<std::int64_t>(numbers.size());
  if (!recsys::ops::ReadProgram(numbers.data(), count, kNumInputs, kNumConstants, &program)
           .empty()) {
    return 0;
  }
  if (program.scratch_width > kMostScratch || program.ids_width > kMostScratch ||
      program.buffers.size() > 16 || program.steps.size() > 16) {
    return 0;
  }
  // Steps that would take long.
  for (const recsys::ops::Form& form : program.forms) {
    if (form.sizes[0] * form.sizes[1] * form.sizes[2] * form.sizes[3] > kMostScratch) return 0;
  }
  BoundProgram bound;
  bound.program = &program;
  // Exact sizes: the address sanitizer sees what lies outside.
  std::vector<std::vector<float>> memory;
  for (const recsys::ops::Buffer& buffer : program.buffers) {
    if (buffer.width > kMostWidth) return 0;
    const bool is_scratch = buffer.kind == BufferKind::kScratch || buffer.kind == BufferKind::kIds;
    // As the number of a row's IDs it says 2.
    memory.emplace_back(static_cast<std::size_t>(is_scratch ? 0 : buffer.width * kNumRows), 2.25F);
    const std::int64_t stride = buffer.kind == BufferKind::kConstant ? 0 : buffer.width;
    bound.reads.push_back({memory.back().data(), stride});
    bound.writes.push_back({memory.back().data(), stride});
  }
  for (const Weights& each : weights) bound.weights.push_back(each.packed);
  std::vector<std::uint8_t> rows(5 * recsys::ops::RowBytes(recsys::ops::RowType::kInt8, 4));
  std::vector<recsys::ops::Slot> slots(kNumSlots);
  for (std::int64_t i = 0; i < kNumSlots; ++i) {
    recsys::ops::Slot& slot = slots[static_cast<std::size_t>(i)];
    slot = {rows.data(), 5, recsys::ops::RowType::kInt8, 4, 4 * i};
    slot.feature = kNumSlots - 1 - i;
  }
  const std::vector<std::int64_t> offsets = {0, 1, 3, 3, 4, 5, 8};
  std::vector<std::int64_t> ids(8);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i < size ? bytes[i] % 6 : 0;
  for (const recsys::ops::LookupSource& source : program.lookups) {
    recsys::ops::Lookup lookup;
    lookup.slots = slots.data();
    const bool is_sequence = source.pooling == 2;
    lookup.num_slots = is_sequence ? 1 : kNumSlots;
    lookup.num_bags = kNumRows;
    lookup.ids = ids.data();
    lookup.offsets = offsets.data();
    lookup.pooling = static_cast<recsys::ops::Pooling>(source.pooling);
    bound.lookups.push_back(lookup);
  }
  for (const recsys::ops::FeatureSource& source : program.features) {
    bound.features.push_back({ids.data(), offsets.data() + source.feature % kNumSlots * kNumRows});
  }
  if (!recsys::ops::CheckBound(bound).empty()) return 0;
  recsys::ops::RunProgram(bound, recsys::ops::ChosenKernels(), 0, kNumRows);
  return 0;
}
