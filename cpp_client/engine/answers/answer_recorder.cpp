#include "engine/answers/answer_recorder.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <utility>

#include "base/clock.h"

namespace recsys {
namespace {

// A block that has so many is handed over: enough that what the owner does for each block costs
// little for each request.
constexpr std::int64_t kBlockRequests = 32768;
constexpr std::int64_t kBlockBytes = 8 << 20;
// Under load, each of a few threads fills one while others are written.
constexpr std::size_t kSpareBlocks = 8;
// So many times the owner has taken all blocks, some were never needed.
constexpr int kUnusedTakes = 32;
// Offsets within a block are int32.
constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 30;

}  // namespace

AnswerRecorder::AnswerRecorder(std::int64_t max_bytes)
    : max_bytes_(max_bytes), pool_(kSpareBlocks, 2 * kBlockBytes) {}

AnswerRecorder::Stripe& AnswerRecorder::StripeOfThread() {
  static std::atomic<std::size_t> num_threads{0};
  thread_local const std::size_t number = num_threads.fetch_add(1, std::memory_order_relaxed);
  return stripes_[number % kStripes];
}

AnswerBlocks::iterator AnswerRecorder::Find(const Request& request, AnswerBlocks* open) {
  const std::shared_ptr<const VersionShape>& shape = request.servable->shape();
  const auto found = std::find_if(open->begin(), open->end(), [&](const auto& block) {
    return block->Takes(shape.get(), request.keeps_inputs);
  });
  if (found != open->end()) return found;
  open->push_back(pool_.Get(shape, request.keeps_inputs));
  return open->end() - 1;
}

bool AnswerRecorder::Add(const Request& request) {
  const std::size_t size = request.payload.view.size() + request.outputs.size();
  if (num_bytes_.load(std::memory_order_relaxed) >= max_bytes_ || size > kMaxRequestBytes) {
    Drop(request, 1);
    return false;
  }
  Stripe& stripe = StripeOfThread();
  const std::lock_guard<std::mutex> lock(stripe.mutex);
  auto found = stripe.open.end();
  std::int64_t num_before = 0;
  try {
    found = Find(request, &stripe.open);
    AnswerBlock& block = **found;
    num_before = block.num_bytes();
    block.Add(request, EpochSeconds());
    num_bytes_.fetch_add(block.num_bytes() - num_before, std::memory_order_relaxed);
    if (block.num_requests() < kBlockRequests && block.num_bytes() < kBlockBytes) return false;
  } catch (const std::exception&) {
    // No memory: the columns of the block may differ in length.
    Drop(request, 1);
    if (found == stripe.open.end()) return false;
    Drop(request, (*found)->num_requests());
    num_bytes_.fetch_sub(num_before, std::memory_order_relaxed);
    stripe.open.erase(found);
    return false;
  }
  return HandOver(found, &stripe.open);
}

bool AnswerRecorder::HandOver(AnswerBlocks::iterator block, AnswerBlocks* open) {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    full_.push_back(*block);
  } catch (const std::exception&) {
    return true;  // it stays open: the next request tries again, and the owner takes it anyway
  }
  open->erase(block);
  return true;
}

void AnswerRecorder::Take(bool open, AnswerBlocks* blocks) {
  const std::size_t num_before = blocks->size();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks->insert(blocks->end(), full_.begin(), full_.end());
    full_.clear();
  }
  if (open) {
    for (Stripe& stripe : stripes_) {
      const std::lock_guard<std::mutex> lock(stripe.mutex);
      blocks->insert(blocks->end(), stripe.open.begin(), stripe.open.end());
      stripe.open.clear();
    }
    if (++num_takes_ % kUnusedTakes == 0) pool_.FreeUnused();
  }
  std::int64_t num_bytes = 0;
  for (std::size_t i = num_before; i < blocks->size(); ++i) num_bytes += (*blocks)[i]->num_bytes();
  num_bytes_.fetch_sub(num_bytes, std::memory_order_relaxed);
}

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
