#ifndef RECSYS_WIRE_INFER_INFER_TENSORS_H_
#define RECSYS_WIRE_INFER_INFER_TENSORS_H_

// Named tensors, as Open Inference knows them over gRPC and HTTP, to a request for one model
// (serve/kserve_tensors.py). Shape letters: B rows, L IDs of each row where all have as many, N
// number of IDs of one input.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recsys/request.h"
#include "recsys/signature.h"
#include "wire/owned_bytes.h"

namespace recsys {

/// What a client says of a tensor's sizes: the first few, and how many there are.
struct InferShape {
  std::array<std::int64_t, 8> sizes;
  std::size_t num_dims = 0;

  void Add(std::int64_t size) {
    if (num_dims < sizes.size()) sizes[num_dims] = size;
    ++num_dims;
  }
};

/// One tensor of a request; nothing of it is checked. `data`: little-endian, row-major.
struct InferTensor {
  std::string_view name;
  std::string_view datatype;
  std::string_view data;
  InferShape shape;
};

/// What metadata say of a tensor: -1 stands for a size that requests choose.
struct TensorSpec {
  std::string name;
  const char* datatype;
  std::vector<std::int64_t> shape;
};

/// The tensors that a model takes, sparse inputs in their jagged form; and those that it gives.
std::vector<TensorSpec> InputSpecs(const Signature& signature);
std::vector<TensorSpec> OutputSpecs(const Signature& signature);

/// The most tensors that a request for such a model can have.
std::size_t MostTensors(const Signature& signature);

/// Bytes of a number of the types that are served ("FP32", "INT64", "INT32"); 0 for others.
std::size_t DatatypeBytes(std::string_view datatype);

/// What error texts call a tensor.
std::string TensorField(std::string_view name);

/// Puts a request together from its tensors, in any order. `context`: names of the inputs that
/// have one row, which stands for all, with commas between them. `raw` points into the tensors'
/// names and data, and into `owned`. Throws Error (kRequest, kRequestTooLarge): a tensor is
/// missing, unknown, or not of a type and shape that its input can have.
void ReadInferTensors(const std::vector<InferTensor>& tensors, std::string_view context,
                      const Signature& signature, const RequestLimits& limits, OwnedBytes* owned,
                      RawRequest* raw);

/// Refuses more outputs than there are. Throws Error.
void CheckNumOutputs(std::size_t num_outputs, const Signature& signature);

/// The numbers of the outputs that a request names, in its order; empty for all, where it names
/// none. Throws Error.
std::vector<std::size_t> WantedOutputs(const std::vector<std::string_view>& names,
                                       const Signature& signature);

}  // namespace recsys

#endif  // RECSYS_WIRE_INFER_INFER_TENSORS_H_
