#ifndef RECSYS_ENGINE_ANSWERS_BLOCK_POOL_H_
#define RECSYS_ENGINE_ANSWERS_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/answers/answer_block.h"

namespace recsys {

/// Blocks that their owners have dropped: others append to their memory, and the kernel clears no
/// new pages. Thread-safe; blocks may outlive it.
class BlockPool {
 public:
  /// `max_blocks`: that are kept; `max_bytes`: of requests in a block that is kept.
  BlockPool(std::size_t max_blocks, std::int64_t max_bytes)
      : spare_(std::make_shared<Spare>(max_blocks, max_bytes)) {}

  /// Returns an empty block, which comes back when its last owner drops it. Throws std::bad_alloc.
  std::shared_ptr<AnswerBlock> Get(const std::shared_ptr<const VersionShape>& shape,
                                   bool has_inputs);

  /// Frees the blocks that nobody has needed since the last call.
  void FreeUnused();

  std::size_t num_spare() const;

 private:
  struct Spare {
    Spare(std::size_t most_blocks, std::int64_t most_bytes);
    /// Keeps a block or frees it.
    void Return(std::unique_ptr<AnswerBlock> block);

    const std::size_t max_blocks;
    const std::int64_t max_bytes;
    std::mutex mutex;
    /// Those that were dropped last come last.
    std::vector<std::unique_ptr<AnswerBlock>> blocks;
    /// The fewest that there were since the last FreeUnused.
    std::size_t num_unused = 0;
  };

  const std::shared_ptr<Spare> spare_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ANSWERS_BLOCK_POOL_H_
