#include "ops/program/bags/places.h"

#include <algorithm>

namespace recsys::ops {
namespace {

/// Returns the numbers of a step that are computed together, or of which one operand has one.
std::int64_t RunOf(const Step& step) {
  switch (Of(static_cast<ElementwiseKind>(step.index)).operands) {
    case Operands::kRepeated:
      return step.extra;
    case Operands::kShares:
      return step.out.width / std::max<std::int64_t>(step.extra, 1);
    case Operands::kLayers:
      return step.b.width;
    // All numbers of a row.
    case Operands::kRow:
    case Operands::kGroups:
    case Operands::kVectors:
      return step.out.width + 1;
    default:
      return 1;
  }
}

bool HasPlacesOfNumbers(const Step& leading, const Step& step) {
  const std::int64_t size = leading.extra, of_place = leading.index, width = step.out.width;
  const bool are_pairs = leading.kind == StepKind::kFirstPairs;
  if (of_place < 1 || of_place > width || width % (size * of_place) != 0 ||
      (are_pairs && width / (size * of_place) % size != 0)) {
    return false;
  }
  const std::int64_t run = RunOf(step);
  // A run may be that of all places.
  return of_place % run == 0 ||
         (of_place == 1 && run == size &&
          Of(static_cast<ElementwiseKind>(step.index)).operands == Operands::kShares);
}

}  // namespace

bool HasPlaces(const Step& leading, const Step& step, const std::vector<Form>& forms) {
  const std::int64_t size = leading.extra;
  // Neither they nor pairs of them are more than a row may have.
  if (size < 1 || size > std::int64_t{1} << 12) return false;
  const bool are_pairs = leading.kind == StepKind::kFirstPairs;
  switch (step.kind) {
    case StepKind::kLinear:
      return !are_pairs && leading.index >= 1 && leading.index <= step.out.width &&
             leading.index * size == step.out.width;
    case StepKind::kElementwise:
      return HasPlacesOfNumbers(leading, step);
    case StepKind::kContract:
    case StepKind::kBroadcast:
      if (are_pairs || leading.index < 1 || leading.index >= 1 << kLoops) return false;
      for (int i = 0; i < kLoops; ++i) {
        const Form& form = forms[static_cast<std::size_t>(step.index)];
        if ((leading.index >> i & 1) != 0 && form.sizes[i] % size != 0) return false;
      }
      return true;
    default:
      return false;
  }
}

double ShareOf(const Step& leading, const Step& step, std::int64_t count) {
  const double share = static_cast<double>(count) / static_cast<double>(leading.extra);
  if (leading.kind == StepKind::kFirstPairs) return share * share;
  if (step.kind != StepKind::kContract && step.kind != StepKind::kBroadcast) return share;
  double product = 1;
  for (int i = 0; i < kLoops; ++i) product *= (leading.index >> i & 1) != 0 ? share : 1;
  return product;
}

void ElementwiseOfPlaces(const Kernels& kernels, const FirstPlaces& places, Elementwise row,
                         OutRows out) {
  if (places.count <= places.begin) return;
  const std::int64_t size = places.leading.extra, of_place = places.leading.index;
  const bool are_pairs = places.leading.kind == StepKind::kFirstPairs;
  const std::int64_t block = size * of_place, num_blocks = row.width / block;
  // A row of the kernel is a block of places.
  row.a.stride = row.b.stride = row.c.stride = block;
  const std::int64_t num_places = are_pairs ? places.count : places.count - places.begin;
  switch (Of(row.kind).operands) {
    case Operands::kShares: {
      const std::int64_t run = row.width / std::max<std::int64_t>(row.count, 1);
      row.count = of_place < run ? 1 : num_places * of_place / run;
      break;
    }
    case Operands::kRepeated:
      row.a.stride = block / row.count;
      break;
    case Operands::kRuns:
      row.a.stride = block * row.count;
      break;
    case Operands::kLayers:
      row.b.stride = row.c.stride = 0;
      break;
    default:
      break;
  }
  row.width = num_places * of_place;
  out.stride = block;
  row.num_rows = are_pairs ? places.count - places.begin : num_blocks;
  // Of pairs those of one place are a block.
  const auto skip = [&](auto* rows) {
    rows->data +=
        are_pairs ? places.begin * rows->stride : places.begin * of_place * rows->stride / block;
  };
  skip(&row.a);
  skip(&row.b);
  skip(&row.c);
  skip(&out);
  const std::int64_t num_turns = are_pairs ? num_blocks / size : 1;
  for (std::int64_t i = 0; i < num_turns; ++i) {
    kernels.elementwise(row, out);
    row.a.data += size * row.a.stride;
    row.b.data += size * row.b.stride;
    row.c.data += size * row.c.stride;
    out.data += size * out.stride;
  }
}

void FormOfPlaces(const FirstPlaces& places, void (*compute)(const Formed&, OutRows), Formed row,
                  OutRows out) {
  Form form = *row.form;
  for (int i = 0; i < kLoops; ++i) {
    if ((places.leading.index >> i & 1) == 0) continue;
    const std::int64_t of_place = form.sizes[i] / places.leading.extra;
    const std::int64_t begin = (places.loop >> i & 1) != 0 ? places.begin : 0;
    form.sizes[i] = of_place * (places.count - begin);
    row.a.data += of_place * begin * form.strides.a[i];
    row.b.data += of_place * begin * form.strides.b[i];
    out.data += of_place * begin * form.strides.out[i];
  }
  row.form = &form;
  if (form.sizes[kLoops - 1] == 0) {
    const std::int64_t* const by = form.strides.out;
    for (std::int64_t i = 0; i < form.sizes[0]; ++i) {
      for (std::int64_t j = 0; j < form.sizes[1]; ++j) {
        for (std::int64_t k = 0; k < form.sizes[2]; ++k) {
          out.data[i * by[0] + j * by[1] + k * by[2]] = 0;
        }
      }
    }
    return;
  }
  if (form.sizes[0] * form.sizes[1] * form.sizes[2] > 0) compute(row, out);
}

}  // namespace recsys::ops
