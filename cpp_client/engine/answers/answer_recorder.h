#ifndef RECSYS_ENGINE_ANSWERS_ANSWER_RECORDER_H_
#define RECSYS_ENGINE_ANSWERS_ANSWER_RECORDER_H_

#include <array>
#include <atomic>
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

using AnswerBlocks = std::vector<std::shared_ptr<AnswerBlock>>;

/// Collects answered requests into blocks until their owner takes them. Threads append to different
/// blocks, so that they rarely wait for each other. Thread-safe.
class AnswerRecorder {
 public:
  /// `max_bytes`: of all blocks that wait; further requests are dropped and counted.
  explicit AnswerRecorder(std::int64_t max_bytes);

  /// Appends an answered request, if there is room. Returns whether a block is full, so that the
  /// owner should take it. Never throws.
  bool Add(const Request& request);

  /// Moves the full blocks to `blocks`, and with `open` those too that are not full.
  void Take(bool open, AnswerBlocks* blocks);

  /// Requests that were dropped for lack of room; of those, the ones to be kept with their inputs.
  std::int64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }
  std::int64_t num_inputs_dropped() const {
    return num_inputs_dropped_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::size_t kStripes = 16;
  /// The blocks that some threads append to.
  struct alignas(64) Stripe {
    std::mutex mutex;
    AnswerBlocks open;
  };

  Stripe& StripeOfThread();
  /// Returns the place of the block for a request. The caller holds the stripe's lock.
  AnswerBlocks::iterator Find(const Request& request, AnswerBlocks* open);
  /// Moves a block to the full ones; always returns true. The caller holds the stripe's lock.
  bool HandOver(AnswerBlocks::iterator block, AnswerBlocks* open);
  void Drop(const Request& request, std::int64_t number) {
    num_dropped_.fetch_add(number, std::memory_order_relaxed);
    if (request.keeps_inputs) num_inputs_dropped_.fetch_add(number, std::memory_order_relaxed);
  }

  const std::int64_t max_bytes_;
  BlockPool pool_;
  std::atomic<int> num_takes_{0};
  std::array<Stripe, kStripes> stripes_;
  std::atomic<std::int64_t> num_bytes_{0};
  std::atomic<std::int64_t> num_dropped_{0}, num_inputs_dropped_{0};
  std::mutex mutex_;
  AnswerBlocks full_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ANSWERS_ANSWER_RECORDER_H_
