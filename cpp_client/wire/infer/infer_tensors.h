#ifndef RECSYS_WIRE_INFER_INFER_TENSORS_H_
#define RECSYS_WIRE_INFER_INFER_TENSORS_H_

// Converts named tensors, as Open Inference defines them over gRPC and HTTP, into a request for one
// model (serve/engine/reference/protocols/tensors.py). Shape letters: B rows, L IDs per row if all
// rows have the same number, N number of IDs of one input.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recsys/request.h"
#include "recsys/signature.h"
#include "wire/owned_bytes.h"

namespace recsys {

/// A tensor's sizes as stated by the client: the first few, and their number.
struct InferShape {
  std::array<std::int64_t, 8> sizes;
  std::size_t num_dims = 0;

  void Add(std::int64_t size) {
    if (num_dims < sizes.size()) sizes[num_dims] = size;
    ++num_dims;
  }
};

/// The datatype of texts.
inline constexpr char kTextType[] = "BYTES";

/// One unchecked tensor of a request. `data`: little-endian, row-major; each text of BYTES after
/// its length. `texts`: those that were not sent as `data`.
struct InferTensor {
  std::string_view name;
  std::string_view datatype;
  std::string_view data;
  InferShape shape;
  RawTexts texts = {};
};

/// A tensor's metadata: -1 stands for a size that requests choose.
struct TensorSpec {
  std::string name;
  const char* datatype;
  std::vector<std::int64_t> shape;
};

/// Returns the tensors that a model takes, with sparse inputs in jagged form.
std::vector<TensorSpec> InputSpecs(const Signature& signature);

/// Returns the type of an output's tensor.
const char* DatatypeOf(const Output& output);

/// Returns the maximum number of tensors in a request for such a model.
std::size_t MostTensors(const Signature& signature);

/// Returns the bytes per number of the supported types ("FP32", "INT64", "INT32"); 0 for others,
/// also for texts.
std::size_t DatatypeBytes(std::string_view datatype);

/// Returns how error texts name a tensor.
std::string TensorField(std::string_view name);

/// Builds a request from its tensors, given in any order. `context`: comma-separated names of the
/// inputs that have one row, which applies to all. `raw` points into the tensors' names and data,
/// and into `owned`. Throws Error (kRequest, kRequestTooLarge) if a tensor is missing, unknown, or
/// does not match the type and shape of its input.
void ReadInferTensors(const std::vector<InferTensor>& tensors, std::string_view context,
                      const Signature& signature, const RequestLimits& limits, OwnedBytes* owned,
                      RawRequest* raw);

/// Throws Error if there are more outputs than the model has.
void CheckNumOutputs(std::size_t num_outputs, const Signature& signature);

/// Returns the indexes of the outputs that a request names, in its order; empty for all, if it
/// names none. Throws Error.
std::vector<std::size_t> WantedOutputs(const std::vector<std::string_view>& names,
                                       const Signature& signature);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_TENSORS_H_
