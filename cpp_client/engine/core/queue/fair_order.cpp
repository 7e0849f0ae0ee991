#include "engine/core/queue/fair_order.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace recsys {
namespace {

bool Before(const QueueClient& a, const QueueClient& b) {
  return std::tie(a.start, a.place, a.turn) < std::tie(b.start, b.place, b.turn);
}

void Rise(std::vector<QueueClient*>& heap, std::size_t at) {
  QueueClient* const client = heap[at];
  for (; at > 0 && Before(*client, *heap[(at - 1) / 2]); at = (at - 1) / 2) {
    heap[at] = heap[(at - 1) / 2];
    heap[at]->at = at;
  }
  heap[at] = client;
  client->at = at;
}

void Sink(std::vector<QueueClient*>& heap, std::size_t at) {
  QueueClient* const client = heap[at];
  for (std::size_t child = 2 * at + 1; child < heap.size(); child = 2 * at + 1) {
    if (child + 1 < heap.size() && Before(*heap[child + 1], *heap[child])) ++child;
    if (!Before(*heap[child], *client)) break;
    heap[at] = heap[child];
    heap[at]->at = at;
    at = child;
  }
  heap[at] = client;
  client->at = at;
}

}  // namespace

void LevelLines::Join(Request& request) {
  Line& line = lines[static_cast<std::size_t>(request.level)];
  request.next = nullptr;
  request.previous = line.last;
  (line.last == nullptr ? line.first : line.last->next) = &request;
  line.last = &request;
}

void LevelLines::Leave(Request& request) {
  Line& line = lines[static_cast<std::size_t>(request.level)];
  (request.previous == nullptr ? line.first : request.previous->next) = request.next;
  (request.next == nullptr ? line.last : request.next->previous) = request.previous;
  request.previous = request.next = nullptr;
}

Request* LevelLines::Next(double window_s) const {
  Request* next = nullptr;
  double next_s = 0;
  for (const Line& line : lines) {
    Request* const head = line.first;
    if (head == nullptr) continue;
    const double head_s = head->enqueued_s + head->level * window_s;
    if (next == nullptr || head_s < next_s) {
      next = head;
      next_s = head_s;
    }
  }
  return next;
}

Request* LevelLines::Last() const {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line->last != nullptr) return line->last;
  }
  return nullptr;
}

void FairOrder::Join(Request& request, double now_s) {
  QueueClient& client = ClientOf(request.client);
  request.queue_client = &client;
  if (client.level == 0) LeaveIdle(client);
  client.waiting.Join(request);
  client.amounts += request.room;
  waiting_rows_ += request.room[Amount::kRows];
  ++num_waiting_;
  // Behind others of its line, it is not the next one.
  if (request.previous == nullptr) Place(client, now_s, false);
}

void FairOrder::Leave(Request& request, double now_s, bool is_served) {
  QueueClient& client = *std::exchange(request.queue_client, nullptr);
  client.waiting.Leave(request);
  client.amounts -= request.room;
  waiting_rows_ -= request.room[Amount::kRows];
  --num_waiting_;
  if (is_served) {
    Level& level = levels_[static_cast<std::size_t>(client.level)];
    std::int64_t& finished = client.finished[static_cast<std::size_t>(client.level)];
    finished = client.start + request.room[Amount::kRows];
    level.now = std::max(level.now, client.start);
    level.last_finish = std::max(level.last_finish, finished);
  }
  Place(client, now_s, is_served);
  if (client.level == 0) BecomeIdle(client);
}

void FairOrder::LeaveAll() {
  for (Level& level : levels_) {
    for (QueueClient* const client : level.heap) {
      client->waiting = {};
      client->amounts = {};
      client->level = 0;
      BecomeIdle(*client);
    }
    level.heap.clear();
    level.now = level.last_finish;
  }
  waiting_rows_ = 0;
  num_waiting_ = 0;
}

Request* FairOrder::Next() const {
  const QueueClient* next = nullptr;
  double next_s = 0;
  for (const Level& level : levels_) {
    if (level.heap.empty()) continue;
    const QueueClient& first = *level.heap.front();
    const double first_s = first.since_s + first.level * window_s_;
    if (next == nullptr || first_s < next_s) {
      next = &first;
      next_s = first_s;
    }
  }
  return next == nullptr ? nullptr : next->waiting.Next(window_s_);
}

Amounts FairOrder::AmountsOf(std::uint64_t client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? Amounts{} : found->second->amounts;
}

const QueueClient* FairOrder::Heaviest(Amount amount) const {
  const QueueClient* heaviest = nullptr;
  for (const Level& level : levels_) {
    for (const QueueClient* const client : level.heap) {
      // Among clients with as much: the one that has waited less for its turn.
      if (heaviest == nullptr || client->amounts[amount] > heaviest->amounts[amount] ||
          (client->amounts[amount] == heaviest->amounts[amount] && client->turn > heaviest->turn)) {
        heaviest = client;
      }
    }
  }
  return heaviest;
}

QueueClient& FairOrder::ClientOf(std::uint64_t number) {
  if (last_joined_ != nullptr && last_joined_->number == number) return *last_joined_;
  std::unique_ptr<QueueClient>& client = clients_[number];
  if (client == nullptr) {
    client = std::make_unique<QueueClient>();
    client->number = number;
    BecomeIdle(*client);
  }
  last_joined_ = client.get();
  return *client;
}

void FairOrder::Place(QueueClient& client, double now_s, bool was_served) {
  const Request* const next = client.waiting.Next(window_s_);
  const int level = next == nullptr ? 0 : next->level;
  if (level == client.level && !was_served) return;
  const bool was_idle = client.level == 0;
  const bool stays = level == client.level;
  if (!was_idle && !stays) {
    Remove(client);
    Level& left = levels_[static_cast<std::size_t>(client.level)];
    // Nobody waits there any more: nothing is owed.
    if (left.heap.empty()) left.now = left.last_finish;
  }
  client.level = level;
  if (level == 0) return;
  const auto at = static_cast<std::size_t>(level);
  client.start = std::max(levels_[at].now, client.finished[at]);
  if (was_idle && client.start > levels_[at].now) {
    const std::int64_t little = waiting_rows_ / num_waiting_ / kLittleShare;
    if (client.start <= levels_[at].now + little) client.start = levels_[at].now;
  }
  client.since_s = now_s;
  client.turn = ++last_turn_;
  const std::int64_t rows = std::min(next->room[Amount::kRows], kTurnsAhead);
  client.place = static_cast<std::int64_t>(client.turn) + rows - (was_idle ? kTurnsAhead : 0);
  if (stays) {
    std::vector<QueueClient*>& heap = levels_[at].heap;
    Rise(heap, client.at);
    Sink(heap, client.at);
  } else {
    Insert(client);
  }
}

void FairOrder::Insert(QueueClient& client) {
  std::vector<QueueClient*>& heap = levels_[static_cast<std::size_t>(client.level)].heap;
  heap.push_back(&client);
  Rise(heap, heap.size() - 1);
}

void FairOrder::Remove(QueueClient& client) {
  Level& level = levels_[static_cast<std::size_t>(client.level)];
  const std::size_t at = client.at;
  QueueClient* const last = level.heap.back();
  level.heap.pop_back();
  if (last != &client) {
    level.heap[at] = last;
    Rise(level.heap, at);
    Sink(level.heap, last->at);
  }
}

void FairOrder::BecomeIdle(QueueClient& client) {
  client.previous_idle = last_idle_;
  client.next_idle = nullptr;
  (last_idle_ == nullptr ? first_idle_ : last_idle_->next_idle) = &client;
  last_idle_ = &client;
  if (++num_idle_ <= kMaxIdle) return;
  QueueClient& oldest = *first_idle_;
  LeaveIdle(oldest);
  if (last_joined_ == &oldest) last_joined_ = nullptr;
  clients_.erase(oldest.number);
}

void FairOrder::LeaveIdle(QueueClient& client) {
  (client.previous_idle == nullptr ? first_idle_ : client.previous_idle->next_idle) =
      client.next_idle;
  (client.next_idle == nullptr ? last_idle_ : client.next_idle->previous_idle) =
      client.previous_idle;
  client.previous_idle = client.next_idle = nullptr;
  --num_idle_;
}

namespace {

// Weight of everything before the last batch: a single slow batch does not dominate, and a change
// shows within tens of batches.
constexpr double kMemory = 0.9;

}  // namespace

void DrainRate::Taken(double now_s, bool is_empty) {
  if (since_s_) {
    seconds_ = kMemory * seconds_ + (now_s - *since_s_);
    for (const Amount what : kAllAmounts) {
      drained_[what] = kMemory * drained_[what] + static_cast<double>(left_[what]);
    }
  }
  left_ = {};
  since_s_ = is_empty ? std::nullopt : std::optional<double>(now_s);
}

std::int64_t DrainRate::RetryAfterMs(Amount what, std::int64_t amount, double now_s) const {
  const double drained = drained_[what];
  if (drained <= 0 || seconds_ <= 0) return kFirstRetryMs;
  const double running_s = since_s_ ? std::max(now_s - *since_s_, 0.0) : 0.0;
  const double ms = 1000 * static_cast<double>(amount) * (seconds_ + running_s) / drained;
  return static_cast<std::int64_t>(
      std::clamp(std::nearbyint(ms), 1.0, static_cast<double>(kMaxRetryMs)));
}

}  // namespace recsys
