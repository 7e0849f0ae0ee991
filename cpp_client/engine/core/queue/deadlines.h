#ifndef RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_
#define RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"
#include "engine/core/request.h"

namespace recsys {

/// The deadlines of waiting requests, the earliest first, and of equal ones the first that was
/// added. Not thread-safe; owns no request.
///
/// Those of one timeout that one thread reads come in ascending order. So a request joins the first
/// of a few lines that does not end with a later deadline: requests are linked through their own
/// members, in constant time. If all lines end with later ones, it joins a map, in logarithmic
/// time.
class Deadlines {
 public:
  Deadlines() = default;
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  /// Adds a request, whose deadline is finite. Changes nothing if there is no memory.
  void Add(Request& request, double at_s);
  /// Removes a request; ignored if it was not added.
  void Remove(Request& request);
  /// Removes all requests, as far as this object knows them: the caller sets their `deadline_line`
  /// to 0.
  void RemoveAll();
  /// Infinite if there is none.
  double first_s() const {
    const double in_map_s = others_.empty() ? kNever : others_.begin()->first;
    return std::min(*std::min_element(first_s_.begin(), first_s_.end()), in_map_s);
  }
  /// Returns the request with the first deadline; null if there is none.
  Request* First() const;

 private:
  static constexpr std::size_t kNumLines = 4;
  /// Lines are numbered from 1.
  static constexpr std::size_t kInMap = kNumLines + 1;
  using Map = std::multimap<double, Request*>;
  struct Line {
    Request* first = nullptr;
    Request* last = nullptr;
  };

  void AddToMap(Request& request, double at_s);

  /// The first and the last deadline of each line: infinite, and minus infinite, if it is empty.
  /// Kept beside the lines, so that looking for the earliest reads no request.
  std::array<double, kNumLines> first_s_{kNever, kNever, kNever, kNever};
  std::array<double, kNumLines> last_s_{-kNever, -kNever, -kNever, -kNever};
  std::array<Line, kNumLines> lines_{};
  std::uint64_t last_number_ = 0;
  /// Equal deadlines in the order of arrival.
  Map others_;
  /// Nodes to use again. Has room for those of all requests in the map.
  std::vector<Map::node_type> free_nodes_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_DEADLINES_H_
