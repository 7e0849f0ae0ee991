#ifndef RECSYS_WIRE_TENSOR_INDEX_H_
#define RECSYS_WIRE_TENSOR_INDEX_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "wire/infer/infer_tensors.h"

namespace recsys {

/// Finds a request's tensors by their names. Not thread-safe; the tensors must outlive it.
class TensorIndex {
 public:
  /// Throws Error: two have the same name.
  explicit TensorIndex(const std::vector<InferTensor>& tensors);

  /// The tensor that is called so, which is not found again; null where there is none.
  const InferTensor* Take(std::string_view name, std::string_view suffix = {});
  /// How many were not taken.
  std::size_t num_left() const { return num_left_; }

 private:
  std::size_t FirstSlot(std::string_view name, std::string_view suffix) const;

  const std::vector<InferTensor>& tensors_;
  /// Open addressing: numbers of tensors from 1, 0 for none, kTaken for one that was taken.
  std::vector<std::uint32_t> slots_;
  std::size_t num_left_;
};

}  // namespace recsys

#endif  // RECSYS_WIRE_TENSOR_INDEX_H_
