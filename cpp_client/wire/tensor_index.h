#ifndef RECSYS_WIRE_TENSOR_INDEX_H_
#define RECSYS_WIRE_TENSOR_INDEX_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "wire/infer/infer_tensors.h"

namespace recsys {

/// Finds a request's tensors by name. Not thread-safe; the tensors must outlive it.
class TensorIndex {
 public:
  /// Throws Error if two tensors have the same name.
  explicit TensorIndex(const std::vector<InferTensor>& tensors);

  /// Returns the tensor of that name and removes it from the index; null if there is none.
  const InferTensor* Take(std::string_view name, std::string_view suffix = {});
  /// Number of tensors not yet taken.
  std::size_t num_left() const { return num_left_; }

 private:
  std::size_t FirstSlot(std::string_view name, std::string_view suffix) const;

  const std::vector<InferTensor>& tensors_;
  /// Open addressing: indexes of tensors from 1, 0 for an empty slot, kTaken for a taken tensor.
  std::vector<std::uint32_t> slots_;
  std::size_t num_left_;
};

}  // namespace recsys

#endif  // RECSYS_WIRE_TENSOR_INDEX_H_
