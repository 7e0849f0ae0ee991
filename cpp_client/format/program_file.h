#ifndef RECSYS_FORMAT_PROGRAM_FILE_H_
#define RECSYS_FORMAT_PROGRAM_FILE_H_

// A program as a part of an artifact (export/lower/part.py): a file of the format safetensors,
// whose metadata says what the program does with the tensors.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace recsys {

/// A tensor's numbers among a file's bytes.
struct FileTensor {
  /// One of DenseDtypeNames().
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;
  std::size_t num_bytes = 0;
};

/// A dense weight without its numbers.
struct DenseWeight {
  std::string path;
  /// One of DenseDtypeNames().
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// What a plan takes as a constant.
struct ProgramConstant {
  enum class Kind {
    /// The artifact's rows.
    kRows,
    /// A tensor of the file.
    kTensor,
    /// A dense weight as it is.
    kWeight,
    /// A dense weight, and perhaps a bias, packed as those of a linear layer.
    kLayer,
  };
  Kind kind = Kind::kRows;
  /// The name of the tensor, or the path of the weight.
  std::string name;
  /// The path of a layer's bias; empty without one.
  std::string bias;
  /// The tensor, int64 [R, 4], that says which columns of the weight are added up: to where, from
  /// where, how many, and their sign. Empty for all as they are.
  std::string columns;
};

/// What a graph does in a step. Each tensor has a place: the graph's inputs first, then the outputs
/// of each step; a step reads places before its own.
struct FileStep {
  enum class Kind {
    /// Steps over rows: ops/program/program.h.
    kPlan,
    /// Rows of a place by the numbers in another.
    kGather,
    /// A function of TorchScript.
    kRegion,
  };
  Kind kind = Kind::kPlan;
  /// The tensor with a plan's numbers, int64, or with a region's script, uint8.
  std::string name;
  /// What a plan or a region reads.
  std::vector<std::int64_t> inputs;
  /// Which of its inputs tells the number of rows, and how many of its numbers belong to one.
  std::int64_t rows_of = 0, per_row = 1;
  /// The width of each output; 0 for one number a row.
  std::vector<std::int64_t> widths;
  std::vector<ProgramConstant> constants;
  /// How a plan goes on where IDs are appended: ops/program/bags/growing.h. Empty if it does not.
  struct GrowingPlan {
    std::int64_t feature = 0, size = 0, every = 1;
    /// Pairs: of a buffer and its numbers of a place, and of a step and the bit of a loop.
    std::vector<std::vector<std::int64_t>> buffers, steps;
  };
  GrowingPlan growing;
  /// The places that a gather reads.
  std::int64_t rows = 0, index = 0;
  /// How many tensors a region returns, and the paths of its dense weights by attribute.
  std::int64_t num_outputs = 0;
  std::map<std::string, std::string> weights;

  /// How many places it gives.
  std::int64_t num_places() const {
    if (kind == Kind::kGather) return 1;
    return kind == Kind::kRegion ? num_outputs : static_cast<std::int64_t>(widths.size());
  }
};

/// The shape that an input must have: export/lower/part.py, the entry `checks` of a program.
struct FileCheck {
  std::int64_t input = 0, of = 0, per_row = 1, times = 1, width = 0;
};

struct ProgramFile {
  std::int64_t num_inputs = 0;
  std::vector<FileCheck> checks;
  std::vector<FileStep> steps;
  /// Names and places.
  std::vector<std::pair<std::string, std::int64_t>> outputs;
  /// By name.
  std::map<std::string, FileTensor> tensors;
  /// Dense weights by path.
  std::map<std::string, FileTensor> weights;
  /// All dense weights of the model that deltas may change, also those that no step reads: without
  /// numbers. Of files of earlier releases those that steps read.
  std::vector<DenseWeight> dense;
};

/// Reads an untrusted file. Throws Error (kManifest, kNewerFormat). The plans' numbers are not
/// looked at.
ProgramFile ReadProgramFile(std::string_view bytes);

}  // namespace recsys

#endif  // RECSYS_FORMAT_PROGRAM_FILE_H_
