#ifndef RECSYS_OPS_PROGRAM_PROGRAM_H_
#define RECSYS_OPS_PROGRAM_PROGRAM_H_

// Several steps over the rows of a batch as one: a tile of rows passes all of them before the next
// one begins, so that what lies between two steps stays in the cache. A program is plain numbers,
// which can be saved, and is checked when it is read.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/kernels/kernels.h"
#include "ops/kinds.h"
#include "ops/program/bags/growing.h"
#include "ops/program/tiles.h"

namespace recsys::ops {

/// At most so many rows pass all steps together.
constexpr std::int64_t kProgramRows = 48;

/// Rows of numbers.
struct Buffer {
  BufferKind kind = BufferKind::kScratch;
  /// Which input, constant or output; of scratch memory the numbers before it in each row, or for
  /// each ID.
  std::int64_t index = 0;
  std::int64_t width = 0;
};

/// Columns of a buffer.
struct Place {
  std::int64_t buffer = 0;
  std::int64_t column = 0;
  std::int64_t width = 0;
};

struct Step {
  StepKind kind = StepKind::kElementwise;
  Place out;
  /// Those that a step does not read are empty.
  Place a, b, c;
  /// By kind. lookup, sequence, read_ids: the position among the program's lookups. linear: the
  /// constant with its weights. dot: the WeightType. length, differences: the position among the
  /// features. contract, broadcast: the position among the forms. each_id: the number of steps.
  /// elementwise: the ElementwiseKind.
  std::int64_t index = 0;
  /// By kind. linear: the Activation. dot: the numbers of a vector. sequence: 1 where it is read
  /// from the last ID on. broadcast: the ElementwiseKind. take: the numbers of a vector. each_id:
  /// the most IDs of a row, or without a the position among the features. first, first_pairs: the
  /// most places. elementwise: `count`, or the bits of `factor`.
  std::int64_t extra = 0;
};

/// Whether a step reads rows of tables.
constexpr bool IsLookup(const Step& step) {
  return step.kind == StepKind::kLookup || step.kind == StepKind::kSequence ||
         step.kind == StepKind::kReadIds;
}

/// Whether a step computes numbers of a row of others of the row, one by one or by sums.
constexpr bool ComputesNumbers(const Step& step) {
  switch (step.kind) {
    case StepKind::kLinear:
    case StepKind::kDot:
    case StepKind::kElementwise:
    case StepKind::kContract:
    case StepKind::kBroadcast:
      return true;
    default:
      return false;
  }
}

/// Where a lookup's tensors are.
struct LookupSource {
  /// Constants.
  std::int64_t rows = 0, slots = 0;
  /// Inputs; -1 for no weights.
  std::int64_t lengths = 0, values = 0, weights = -1;
  std::int64_t pooling = 0;
  /// Those whose bags the lengths hold; slots read some of them.
  std::int64_t num_features = 1;
};

/// A feature whose IDs are read as they came.
struct FeatureSource {
  /// Inputs.
  std::int64_t lengths = 0, values = 0;
  std::int64_t num_features = 1;
  std::int64_t feature = 0;
};

struct Program {
  std::vector<Buffer> buffers;
  std::vector<LookupSource> lookups;
  std::vector<Step> steps;
  std::vector<Form> forms;
  std::vector<FeatureSource> features;
  /// Rows that pass all steps together.
  std::int64_t tile_rows = kProgramRows;
  /// Numbers of a row in scratch memory.
  std::int64_t scratch_width = 0;
  /// The same of IDs.
  std::int64_t tile_ids = kProgramRows;
  std::int64_t ids_width = 0;
  LateSteps late;
  std::int64_t num_outputs = 0;
  Growing growing;
};

/// Returns the numbers that a row of scratch memory takes for a buffer of this width.
std::int64_t ScratchWidth(std::int64_t width);

/// Sets the sizes of a program's scratch memory and tiles by its buffers.
void MeasureScratch(Program* program);

/// Reads a program of files for so many inputs and constants, and checks it. Returns an error text,
/// empty if it is right.
std::string ReadProgram(const std::int64_t* numbers, std::int64_t count, std::int64_t num_inputs,
                        std::int64_t num_constants, Program* program);

/// Checks the steps of a program and what they read, and counts its outputs and scratch memory.
/// Returns an error text as above.
std::string CheckProgram(std::int64_t num_inputs, std::int64_t num_constants, Program* program);

/// The bags of a feature, and all IDs of the batch.
struct FeatureIds {
  const std::int64_t* ids = nullptr;
  const std::int64_t* offsets = nullptr;
};

/// Buffers with a row for each context, which rows of the batch share.
struct SharedBuffers {
  /// By row of the batch, the row that it reads; below the number of rows there.
  const std::int64_t* of_row = nullptr;
  /// Inputs, by their positions among the buffers. Their `reads` are those of contexts.
  std::vector<std::size_t> buffers;
};

/// A program with its tensors.
struct BoundProgram {
  const Program* program = nullptr;
  /// By buffer: where inputs and constants are read, and outputs written.
  std::vector<Rows> reads;
  std::vector<OutRows> writes;
  /// By constant; of those that are weights.
  std::vector<Packed> weights;
  std::vector<Lookup> lookups;
  std::vector<FeatureIds> features;
  SharedBuffers contexts;
  /// By row; null where all are computed from the beginning and no state is asked for.
  const GrownRow* grown = nullptr;
};

/// Checks what `program` does not know: the shapes of weights and lookups. Returns an error text,
/// empty if they are right.
std::string CheckBound(const BoundProgram& bound);

/// An ID out of range: in which lookup, and where among its IDs.
struct WrongId {
  std::int64_t lookup = -1;
  std::int64_t position = 0;
};

/// Measures the steps of a program.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepClock(const Program& program) : laps_(program.steps.size()) {}

  void Start() { last_ = Clock::now(); }
  /// Adds the time since the lap before to a step, which took so many rows or IDs meanwhile, and
  /// computed of them what makes so many whole ones.
  void Lap(std::size_t step, std::int64_t num_rows, double work) {
    const Clock::time_point now = Clock::now();
    laps_[step].time += now - last_;
    laps_[step].num_rows += num_rows;
    laps_[step].work += work;
    ++laps_[step].count;
    last_ = now;
  }

  /// Adds the time since the lap before to the copies of contexts' rows: for so many rows.
  void LapCopies(std::int64_t num_rows) {
    const Clock::time_point now = Clock::now();
    copies_.time += now - last_;
    copies_.num_rows += num_rows;
    ++copies_.count;
    last_ = now;
  }

  struct Laps {
    Clock::duration time{};
    std::int64_t num_rows = 0;
    double work = 0;
    std::int64_t count = 0;
  };
  /// By step.
  const std::vector<Laps>& laps() const { return laps_; }
  const Laps& copies() const { return copies_; }

 private:
  std::vector<Laps> laps_;
  Laps copies_;
  Clock::time_point last_;
};

/// Runs rows `first` to `end`. Stops at the first ID out of range. `clock`: null, or what measures
/// the steps. A step that fetches the rows of a later one takes the time of that.
WrongId RunProgram(const BoundProgram& bound, const Kernels& kernels, std::int64_t first,
                   std::int64_t end, StepClock* clock = nullptr);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_PROGRAM_H_
