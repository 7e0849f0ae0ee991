// The tensor metadata for Open Inference clients, and the outputs that they may name.

#include <algorithm>
#include <set>
#include <string>

#include "base/text.h"
#include "recsys/error.h"
#include "wire/infer/infer_tensors.h"

namespace recsys {
namespace {

// Values, lengths and weights of a sparse input.
constexpr std::size_t kMostParts = 3;

}  // namespace

std::vector<TensorSpec> InputSpecs(const Signature& signature) {
  std::vector<TensorSpec> specs;
  for (const DenseInput& input : signature.dense) {
    specs.push_back({input.name, "FP32", {-1, input.width}});
  }
  for (const SparseInput& input : signature.sparse) {
    const char* const datatype = input.strings.empty() ? "INT64" : kTextType;
    specs.push_back({input.name + ".values", datatype, {-1}});
    specs.push_back({input.name + ".lengths", "INT32", {-1}});
    if (input.weighted) specs.push_back({input.name + ".weights", "FP32", {-1}});
  }
  return specs;
}

const char* DatatypeOf(const Output& output) {
  return output.type == OutputType::kInt64 ? "INT64" : "FP32";
}

std::size_t MostTensors(const Signature& signature) {
  return signature.dense.size() + kMostParts * signature.sparse.size();
}

std::size_t DatatypeBytes(std::string_view datatype) {
  if (datatype == "FP32" || datatype == "INT32") return 4;
  return datatype == "INT64" ? 8 : 0;
}

std::string TensorField(std::string_view name) {
  return "inputs[" + Repr(FirstChars(name, 64)) + "]";
}

void CheckNumOutputs(std::size_t num_outputs, const Signature& signature) {
  const std::size_t most = signature.outputs.size();
  if (num_outputs <= most) return;
  throw Error(ErrorKind::kRequest, "outputs: got " + std::to_string(num_outputs) +
                                       ", expected at most " + std::to_string(most) +
                                       ", each once");
}

std::vector<std::size_t> WantedOutputs(const std::vector<std::string_view>& names,
                                       const Signature& signature) {
  const std::vector<Output>& outputs = signature.outputs;
  std::vector<std::size_t> wanted;
  for (const std::string_view name : names) {
    const auto found = std::find_if(outputs.begin(), outputs.end(),
                                    [name](const Output& output) { return output.name == name; });
    if (found == outputs.end()) {
      std::vector<std::string> known;
      known.reserve(outputs.size());
      for (const Output& output : outputs) known.push_back(output.name);
      throw Error(ErrorKind::kRequest, "outputs: got an unknown output " +
                                           Repr(FirstChars(name, 64)) + ", expected " +
                                           Listed(known));
    }
    wanted.push_back(static_cast<std::size_t>(found - outputs.begin()));
  }
  if (std::set<std::size_t>(wanted.begin(), wanted.end()).size() != wanted.size()) {
    throw Error(ErrorKind::kRequest,
                "outputs: got an output more than once, expected each at most once");
  }
  return wanted;
}

}  // namespace recsys
