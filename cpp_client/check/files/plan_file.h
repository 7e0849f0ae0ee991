#ifndef RECSYS_CHECK_FILES_PLAN_FILE_H_
#define RECSYS_CHECK_FILES_PLAN_FILE_H_

// A graph that is one plan of own operators, as a part of an artifact
// (export/artifact/plan_part.py): a file of the format safetensors, whose metadata says what the
// tensors are to the plan.

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

/// What a plan takes as a constant.
struct PlanConstant {
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
};

struct PlanFile {
  /// Those of the graph; and which of them the plan takes, one after the other.
  std::int64_t num_inputs = 0;
  std::vector<std::int64_t> inputs;
  /// Which of the plan's inputs tells the number of rows, and how many of its numbers belong to
  /// one.
  std::int64_t rows_of = 0, per_row = 1;
  /// The widths of the plan's outputs; 0 for numbers of rows without another dimension.
  std::vector<std::int64_t> widths;
  /// The names of the graph's outputs, and which of the plan's they are.
  std::vector<std::pair<std::string, std::int64_t>> outputs;
  std::vector<PlanConstant> constants;
  /// The plan's numbers, int64.
  FileTensor plan;
  /// By name.
  std::map<std::string, FileTensor> tensors;
  /// Dense weights by path.
  std::map<std::string, FileTensor> weights;
};

/// Reads an untrusted file. Throws Error (kManifest, kNewerFormat). The plan's numbers are not
/// looked at.
PlanFile ReadPlanFile(std::string_view bytes);

}  // namespace recsys

#endif  // RECSYS_CHECK_FILES_PLAN_FILE_H_
