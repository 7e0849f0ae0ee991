#ifndef RECSYS_PORT_POLLING_POSTED_CALLS_H_
#define RECSYS_PORT_POLLING_POSTED_CALLS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace recsys::http2 {

/// What another thread may post to a loop, such as a call with its answer.
class Posted {
 public:
  virtual ~Posted() = default;
  /// Connections take turns by their numbers.
  virtual std::uint64_t connection_number() const = 0;
  /// Called in a loop's thread: posts itself again if its connection has moved to another one.
  virtual void Deliver() = 0;
};

/// Calls that other threads have posted, until they are delivered. Connections take turns: none
/// waits for all that was posted for another one. Not thread-safe.
///
/// `Call` has connection_number() and Deliver().
template <typename Call>
class PostedCalls {
 public:
  using Calls = std::vector<std::shared_ptr<Call>>;

  bool is_empty() const { return turns_.empty(); }

  /// Delivers about so many of those that were posted before and of `posted`, which it empties: of
  /// each connection an equal share, in order, and at least one.
  void Deliver(Calls* posted, std::size_t at_most) {
    if (is_empty() && posted->size() <= at_most) {
      // Released at once: a call may hold much memory.
      for (std::shared_ptr<Call>& call : *posted) std::exchange(call, nullptr)->Deliver();
      return posted->clear();
    }
    for (std::shared_ptr<Call>& call : *posted) {
      std::deque<std::shared_ptr<Call>>& line = lines_[call->connection_number()];
      if (line.empty()) turns_.push_back(call->connection_number());
      line.push_back(std::move(call));
    }
    posted->clear();
    const std::size_t num_lines = turns_.size();
    const std::size_t share =
        std::max<std::size_t>(at_most / std::max<std::size_t>(num_lines, 1), 1);
    for (std::size_t i = 0; i < num_lines; ++i) TakeTurn(share);
  }

 private:
  void TakeTurn(std::size_t share) {
    const std::uint64_t number = turns_.front();
    turns_.pop_front();
    const auto found = lines_.find(number);
    std::deque<std::shared_ptr<Call>>& line = found->second;
    for (; share > 0 && !line.empty(); --share) {
      const std::shared_ptr<Call> call = std::move(line.front());
      line.pop_front();
      call->Deliver();
    }
    if (line.empty()) {
      lines_.erase(found);
    } else {
      turns_.push_back(number);
    }
  }

  /// By number of connection; none is empty.
  std::unordered_map<std::uint64_t, std::deque<std::shared_ptr<Call>>> lines_;
  /// The connections that have lines, the next one first.
  std::deque<std::uint64_t> turns_;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_POSTED_CALLS_H_
