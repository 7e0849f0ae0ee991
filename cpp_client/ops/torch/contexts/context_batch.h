#ifndef RECSYS_OPS_TORCH_CONTEXTS_CONTEXT_BATCH_H_
#define RECSYS_OPS_TORCH_CONTEXTS_CONTEXT_BATCH_H_

// Shape letters: B rows, Q contexts of a batch, Fc sparse inputs of the context, N number of their
// IDs.

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/context_cache.h"

namespace recsys::ops {

/// Which inputs of a ranking form are of the contexts; `row_context` is the last input.
struct ContextInputs {
  /// Whether it is a ranking form at all.
  bool is_ranking = false;
  /// The positions of dense inputs, float32 [Q, width] each.
  std::vector<std::size_t> dense = {};
  /// The position of the lengths, int64 [Fc * Q]. The IDs, int64 [N], are the next, the weights,
  /// float32 [N], behind these.
  std::size_t lengths = 0;
  /// Fc.
  std::int64_t num_features = 0;
  bool is_weighted = false;
  /// Keeps the contexts' values; null for none. Equal contexts of a batch are computed once
  /// without it too.
  std::shared_ptr<ContextCache> cache = nullptr;
  /// The sparse input whose IDs are the last part of keys, so that a bag that grows has a key that
  /// begins alike; -1 for none.
  std::int64_t growing = -1;
};

/// The contexts of a batch: what each consists of, and which are equal. Refers to the inputs that
/// it was read from. Not to be moved.
class ContextBatch {
 public:
  /// Reads contexts. Returns false for inputs that a graph would refuse, or takes only as a whole:
  /// of other types or shapes than an engine makes.
  bool Read(const ContextInputs& from, const std::vector<at::Tensor>& inputs);

  /// Returns the contexts that differ, in the order in which they come first.
  const std::vector<ContextKey>& keys() const { return keys_; }

  /// Returns how many IDs a key has of the input that grows.
  std::int64_t NumGrowing(std::size_t key) const;

  /// Returns the inputs with each context once, and the rows' contexts by their new numbers.
  std::vector<at::Tensor> Distinct() const;
  /// Returns the inputs with some of the contexts, by their places in keys(); row_context stays as
  /// it is.
  std::vector<at::Tensor> Some(const std::vector<std::size_t>& places) const;

 private:
  bool ReadSizes();
  bool ReadIds();
  bool ReadRows() const;
  void WriteKeys();
  void WriteKey(std::int64_t context, std::string* to) const;
  void AppendBag(std::int64_t feature, std::int64_t context, std::string* to) const;
  void FindEqual(const std::vector<ContextKey>& all);
  std::vector<at::Tensor> With(const std::vector<std::int64_t>& contexts) const;
  at::Tensor Renumbered() const;

  const at::Tensor& lengths() const { return (*inputs_)[from_->lengths]; }
  const at::Tensor& values() const { return (*inputs_)[from_->lengths + 1]; }
  const at::Tensor& weights() const { return (*inputs_)[from_->lengths + 2]; }

  const ContextInputs* from_ = nullptr;
  const std::vector<at::Tensor>* inputs_ = nullptr;
  /// Q.
  std::int64_t num_contexts_ = 0;
  /// Where the IDs of each bag begin, [Fc * Q + 1].
  std::vector<std::int64_t> offsets_;
  /// What the keys consist of.
  std::string bytes_;
  std::vector<ContextKey> keys_;
  /// By key, the first context that has it; by context, the place of its key.
  std::vector<std::int64_t> firsts_, places_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_CONTEXTS_CONTEXT_BATCH_H_
