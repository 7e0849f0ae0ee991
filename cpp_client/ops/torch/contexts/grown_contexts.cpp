#include "ops/torch/contexts/grown_contexts.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/hash/xxh64.h"

namespace recsys::ops {
namespace {

/// A state that lacks more IDs is not looked for.
constexpr std::int64_t kMostNew = 32;

/// Returns a key, and those that lack one ID, two, and so on at its end.
std::vector<ContextKey> Shorter(const ContextKey& key, std::int64_t most) {
  std::vector<ContextKey> keys{key};
  std::string_view bytes = key.bytes;
  for (; most > 0; --most) {
    bytes.remove_suffix(sizeof(std::int64_t));
    keys.push_back({bytes, Xxh64(bytes)});
  }
  return keys;
}

}  // namespace

void GrownContexts::Find(const ContextBatch& batch, const std::vector<std::size_t>& places) {
  for (const std::size_t place : places) {
    GrownRow& row = rows_.emplace_back();
    std::shared_ptr<float[]> written;
    ContextCache::Values before;
    row.num_ids = batch.NumGrowing(place);
    const ContextKey& key = batch.keys()[place];
    if (row.num_ids > 0 && row.num_ids < program_.growing.size) {
      // At least one ID was there before.
      ContextCache::First found =
          states_->FindFirst(owner_, Shorter(key, std::min(kMostNew, row.num_ids - 1)));
      if (!generation_) generation_ = found.generation;
      if (found.values != nullptr && found.generation == generation_) {
        row.num_before = row.num_ids - found.place;
        row.begin = row.num_before / program_.growing.every * program_.growing.every;
        before = std::move(found.values);
        row.before = before.get();
      }
      const std::int64_t count = NumbersOfState(program_, row.num_ids);
      if (states_->Fits(key, count)) {
        written = std::shared_ptr<float[]>(new float[static_cast<std::size_t>(count)]);
        row.state = written.get();
      }
    }
    before_.push_back(std::move(before));
    written_.push_back(std::move(written));
  }
}

void GrownContexts::Keep(const ContextBatch& batch, const std::vector<std::size_t>& places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (written_[i] == nullptr) continue;
    states_->Add(owner_, *generation_, batch.keys()[places[i]], std::move(written_[i]),
                 NumbersOfState(program_, rows_[i].num_ids));
  }
}

}  // namespace recsys::ops
