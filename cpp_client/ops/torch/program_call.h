#ifndef RECSYS_OPS_TORCH_PROGRAM_CALL_H_
#define RECSYS_OPS_TORCH_PROGRAM_CALL_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ops/kernels/kernels.h"
#include "ops/outside/outside_rows.h"
#include "ops/program/program.h"
#include "ops/program/step_times.h"

namespace recsys::ops {

/// Columns of the tensor that describes a lookup's slots: offset of the rows, number of rows (-1:
/// all that fit), type, width, first column of the output, modulus (negative where IDs are mixed
/// first), last ID, feature.
constexpr std::int64_t kSlotColumns = 8;

/// What a lookup's slots must stay within: columns of the output, and features of the batch.
struct LookupSizes {
  std::int64_t width = 1;
  std::int64_t num_features = 1;
};

/// The tables of a lookup, checked.
class LookupTables {
 public:
  /// `rows`: uint8; `slots`: int64 [S, kSlotColumns]. Throws for tensors that do not fit, and for
  /// rows outside of `rows`.
  LookupTables(const at::Tensor& rows, const at::Tensor& slots, const LookupSizes& sizes);

  const std::vector<Slot>& slots() const { return slots_; }

 private:
  at::Tensor rows_;
  std::vector<Slot> slots_;
};

/// The IDs of a batch, checked: a bag for each feature and row. Not to be moved.
class BatchIds {
 public:
  /// `lengths`: int64 [F * B], feature by feature; `values`: int64 [N]; `weights`: numbers [N], or
  /// undefined if each ID counts once. Throws for tensors that do not fit.
  BatchIds(const at::Tensor& lengths, const at::Tensor& values, const at::Tensor& weights,
           std::int64_t num_features);
  BatchIds(const BatchIds&) = delete;
  BatchIds& operator=(const BatchIds&) = delete;

  /// B.
  std::int64_t num_bags() const { return num_bags_; }
  /// Makes a lookup read these IDs, which must outlive it.
  void BindTo(Lookup* lookup) const;
  /// Returns those of one of the features.
  const std::int64_t* ids() const { return ids_.const_data_ptr<std::int64_t>(); }
  const std::int64_t* OffsetsOfFeature(std::int64_t feature) const {
    return offsets_.data() + feature * num_bags_;
  }
  /// Throws for the ID at a position, which is out of range for a slot of the lookup.
  [[noreturn]] void ThrowWrongId(const Lookup& lookup, std::int64_t position) const;

 private:
  void ReadOffsets(const at::Tensor& lengths);

  at::Tensor ids_, weights_;
  std::int64_t num_bags_ = 0;
  std::vector<std::int64_t> offsets_;
};

/// A call of a program in a graph.
struct ProgramStep {
  /// As CheckProgram leaves it.
  Program program;
  std::vector<at::Tensor> constants;
  /// Places.
  std::vector<std::size_t> inputs;
  /// inputs[rows_of] has per_row numbers for each row.
  std::int64_t rows_of = 0, per_row = 0;
  /// Outputs are [B, width] each, or [B] where the width is 0.
  std::vector<std::int64_t> widths;
  /// By input, whether it holds a row for each context, which rows of the batch read in place.
  /// Empty for none. Such inputs are read by steps alone: see IsReadBySteps.
  std::vector<bool> are_contexts;
  /// Rows that lie outside the process; null if none do.
  std::shared_ptr<OutsideRows> outside = nullptr;
};

/// Returns whether nothing but the steps of a program reads an input, and not its lookups.
bool IsReadBySteps(const Program& program, std::int64_t input);

/// A program with its constants, checked: what stays the same between calls. Threads may share it.
/// Not to be moved.
class PreparedProgram {
 public:
  /// The constants are held, not copied. Throws for what does not fit.
  explicit PreparedProgram(const ProgramStep& step);
  PreparedProgram(const PreparedProgram&) = delete;
  PreparedProgram& operator=(const PreparedProgram&) = delete;

  /// Runs the program's steps over the rows of a batch. `row_context`: int64 [B], contiguous, which
  /// row of inputs with contexts each row reads; its numbers are trusted. Not used without such
  /// inputs. Throws for inputs that do not fit, and for IDs out of range.
  /// `grown`: by row, what is known of it and kept for later; null for nothing.
  std::vector<at::Tensor> Run(at::TensorList inputs, const at::Tensor& row_context,
                              const GrownRow* grown = nullptr) const;

  const Program& program() const { return program_; }

  /// Does the same on this thread, and appends what its steps did.
  std::vector<at::Tensor> Profile(at::TensorList inputs, const at::Tensor& row_context,
                                  std::vector<StepTime>* times) const;

 private:
  /// The tensors of one call, bound to the program.
  class Call;

  /// Notes which slots of a lookup read rows outside the process.
  void BindOutside(std::size_t lookup, const at::Tensor& rows);
  void BindWeights();
  void BindLookups();
  void BindBuffers();
  /// Runs the steps that compute the same for every row.
  void RunConstantSteps();
  struct IdInputs;
  /// Returns the position of the tensors that hold some IDs, which each are bound once.
  std::size_t PositionOf(const IdInputs& ids);
  bool HasContexts(std::int64_t input) const {
    return !are_contexts_.empty() && are_contexts_[static_cast<std::size_t>(input)];
  }
  const at::Tensor& Constant(std::int64_t index) const {
    return constants_[static_cast<std::size_t>(index)];
  }

  /// A slot of a lookup whose rows lie outside the process.
  struct OutsideSlot {
    std::size_t lookup = 0;
    std::size_t slot = 0;
    OutsideRows::Place place;
  };

  /// The inputs that hold a lookup's IDs: lengths, values, weights or -1.
  struct IdInputs {
    std::int64_t lengths, values, weights, num_features;
    bool operator==(const IdInputs& other) const {
      return lengths == other.lengths && values == other.values && weights == other.weights &&
             num_features == other.num_features;
    }
  };

  Program program_;
  /// Weights among them may be aligned copies. Behind those that were given: what steps compute of
  /// them alone.
  std::vector<at::Tensor> constants_;
  const std::int64_t num_inputs_, rows_of_, per_row_;
  const std::vector<std::int64_t> widths_;
  const std::vector<bool> are_contexts_;
  std::deque<LookupTables> tables_;
  /// Null if none of the lookups reads any.
  std::shared_ptr<OutsideRows> outside_;
  /// The slots whose rows lie there.
  std::vector<OutsideSlot> outside_slots_;
  /// Each once, and which of them each lookup reads.
  std::vector<IdInputs> ids_;
  std::vector<std::size_t> ids_of_lookups_, ids_of_features_;
  /// Without inputs and outputs.
  BoundProgram bound_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_PROGRAM_CALL_H_
