#include "engine/answers/block_pool.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace recsys {

BlockPool::Spare::Spare(std::size_t most_blocks, std::int64_t most_bytes)
    : max_blocks(most_blocks), max_bytes(most_bytes) {
  blocks.reserve(max_blocks);
}

void BlockPool::Spare::Return(std::unique_ptr<AnswerBlock> block) {
  if (block->num_bytes() > max_bytes) return;
  block->Clear();
  const std::lock_guard<std::mutex> lock(mutex);
  if (blocks.size() < max_blocks) blocks.push_back(std::move(block));
}

std::shared_ptr<AnswerBlock> BlockPool::Get(const std::shared_ptr<const VersionShape>& shape,
                                            bool has_inputs) {
  std::unique_ptr<AnswerBlock> block;
  {
    const std::lock_guard<std::mutex> lock(spare_->mutex);
    std::vector<std::unique_ptr<AnswerBlock>>& blocks = spare_->blocks;
    const auto found = std::find_if(blocks.rbegin(), blocks.rend(), [&](const auto& one) {
      return one->Takes(shape.get(), has_inputs);
    });
    if (found != blocks.rend()) {
      block = std::move(*found);
      blocks.erase(std::next(found).base());
      spare_->num_unused = std::min(spare_->num_unused, blocks.size());
    }
  }
  if (block == nullptr) block = std::make_unique<AnswerBlock>(shape, has_inputs);
  return {block.release(),
          [spare = spare_](AnswerBlock* one) { spare->Return(std::unique_ptr<AnswerBlock>(one)); }};
}

void BlockPool::FreeUnused() {
  std::vector<std::unique_ptr<AnswerBlock>> unused;  // freed without the lock
  const std::lock_guard<std::mutex> lock(spare_->mutex);
  std::vector<std::unique_ptr<AnswerBlock>>& blocks = spare_->blocks;
  // Those that were dropped first.
  const auto end = blocks.begin() + static_cast<std::ptrdiff_t>(spare_->num_unused);
  unused.assign(std::move_iterator(blocks.begin()), std::move_iterator(end));
  blocks.erase(blocks.begin(), end);
  spare_->num_unused = blocks.size();
}

std::size_t BlockPool::num_spare() const {
  const std::lock_guard<std::mutex> lock(spare_->mutex);
  return spare_->blocks.size();
}

}  // namespace recsys
