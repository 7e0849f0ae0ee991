#include "engine/core/queue/deadlines.h"

#include <utility>

namespace recsys {

void Deadlines::Add(Request& request, double at_s) {
  for (std::size_t i = 0; i < kNumLines; ++i) {
    if (at_s < last_s_[i]) continue;
    Line& line = lines_[i];
    if (line.first == nullptr) first_s_[i] = at_s;
    last_s_[i] = at_s;
    request.expires_s = at_s;
    request.sooner = line.last;
    request.later = nullptr;
    (line.last == nullptr ? line.first : line.last->later) = &request;
    line.last = &request;
    request.deadline_line = static_cast<std::uint8_t>(i + 1);
    request.deadline_number = ++last_number_;
    return;
  }
  AddToMap(request, at_s);
}

void Deadlines::AddToMap(Request& request, double at_s) {
  if (free_nodes_.empty()) {
    const std::size_t num = others_.size() + 1;
    if (free_nodes_.capacity() < num) free_nodes_.reserve(2 * num);
    request.deadline_at = others_.emplace_hint(others_.end(), at_s, &request);
  } else {
    Map::node_type node = std::move(free_nodes_.back());
    free_nodes_.pop_back();
    node.key() = at_s;
    node.mapped() = &request;
    request.deadline_at = others_.insert(others_.end(), std::move(node));
  }
  request.deadline_line = kInMap;
  request.deadline_number = ++last_number_;
}

void Deadlines::Remove(Request& request) {
  const std::size_t number = std::exchange(request.deadline_line, 0);
  if (number == 0) return;
  if (number == kInMap) {
    free_nodes_.push_back(others_.extract(request.deadline_at));
    return;
  }
  const std::size_t i = number - 1;
  Line& line = lines_[i];
  if (request.sooner == nullptr) {
    line.first = request.later;
    first_s_[i] = line.first == nullptr ? kNever : line.first->expires_s;
  } else {
    request.sooner->later = request.later;
  }
  if (request.later == nullptr) {
    line.last = request.sooner;
    last_s_[i] = line.last == nullptr ? -kNever : line.last->expires_s;
  } else {
    request.later->sooner = request.sooner;
  }
  request.sooner = request.later = nullptr;
}

void Deadlines::RemoveAll() {
  first_s_.fill(kNever);
  last_s_.fill(-kNever);
  lines_.fill({});
  while (!others_.empty()) free_nodes_.push_back(others_.extract(others_.begin()));
}

Request* Deadlines::First() const {
  Request* first = others_.empty() ? nullptr : others_.begin()->second;
  double first_s = others_.empty() ? kNever : others_.begin()->first;
  for (std::size_t i = 0; i < kNumLines; ++i) {
    Request* const one = lines_[i].first;
    if (one == nullptr || first_s_[i] > first_s) continue;
    if (first_s_[i] == first_s && first->deadline_number < one->deadline_number) continue;
    first = one;
    first_s = first_s_[i];
  }
  return first;
}

}  // namespace recsys
