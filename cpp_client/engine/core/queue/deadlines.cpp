#include "engine/core/queue/deadlines.h"

namespace recsys {

void Deadlines::Add(Request& request, double deadline_s) {
  heap_.emplace_back();
  Rise(heap_.size() - 1, {deadline_s, next_number_++, &request});
}

void Deadlines::Discard(Request& request) {
  if (request.deadline_at == 0) return;
  const std::size_t at = request.deadline_at - 1;
  request.deadline_at = 0;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (at == heap_.size()) return;
  if (at > 0 && Before(last, heap_[(at - 1) / 2])) {
    Rise(at, last);
  } else {
    Sink(at, last);
  }
}

Request* Deadlines::TakePassed(double now_s) {
  if (heap_.empty() || !(heap_.front().deadline_s <= now_s)) return nullptr;
  Request* const request = heap_.front().request;
  Discard(*request);
  return request;
}

void Deadlines::Put(std::size_t at, const Entry& entry) {
  heap_[at] = entry;
  entry.request->deadline_at = at + 1;
}

void Deadlines::Rise(std::size_t at, const Entry& entry) {
  while (at > 0) {
    const std::size_t parent = (at - 1) / 2;
    if (!Before(entry, heap_[parent])) break;
    Put(at, heap_[parent]);
    at = parent;
  }
  Put(at, entry);
}

void Deadlines::Sink(std::size_t at, const Entry& entry) {
  for (;;) {
    std::size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], entry)) break;
    Put(at, heap_[child]);
    at = child;
  }
  Put(at, entry);
}

}  // namespace recsys
