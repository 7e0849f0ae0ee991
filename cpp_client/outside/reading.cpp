#include "outside/reading.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "base/clock.h"

namespace recsys {
namespace {

/// Not a fault of the node: the version that asks is far behind.
constexpr char kLaterOnly[] = "holds later states of some rows only";

/// Returns the number before a row.
std::int64_t NumberBefore(const char* record) {
  std::uint32_t number = 0;
  for (int i = 0; i < kNumberBytes; ++i) {
    number |= static_cast<std::uint32_t>(static_cast<unsigned char>(record[i])) << (8 * i);
  }
  return number;
}

std::int64_t WholeIn(const redisReply& text) {
  std::int64_t number = -1;
  const std::string_view digits(text.str, text.len);
  if (digits.empty() || digits.size() > 10) return -1;
  number = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return -1;
    number = 10 * number + (digit - '0');
  }
  return number;
}

}  // namespace

void Reading::MakeShares(const std::vector<Wanted>& rows) {
  shares_.resize(plan_.num_nodes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto block = static_cast<std::size_t>(rows[i].block);
    const std::int64_t chunk = rows[i].row / kChunkRows;
    Share& share = shares_[NodeOf(chunk, plan_.num_nodes)];
    if (share.rows.empty()) {
      AppendCommand({"HGET", plan_.meta_key, StateField(state_.digest)}, &share.commands);
    }
    share.rows.push_back(i);
    const std::int64_t record_bytes = (*plan_.blocks)[block].record_bytes();
    const std::int64_t first = rows[i].row % kChunkRows * record_bytes;
    AppendCommand({"GETRANGE", (*plan_.block_prefixes)[block] + std::to_string(chunk) + "}",
                   std::to_string(first), std::to_string(first + record_bytes - 1)},
                  &share.commands);
  }
}

void Reading::Run(const std::vector<Wanted>& rows) {
  rows_ = &rows;
  MakeShares(rows);
  const double start_s = MonotonicSeconds(), end_s = start_s + plan_.deadline_s;
  const bool has_replicas = plan_.nodes->size() > plan_.num_nodes;
  bool may_hedge = has_replicas;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    if (!shares_[i].rows.empty()) Start(i, i);
  }
  while (!IsDone()) {
    const double now_s = MonotonicSeconds();
    if (now_s >= end_s) break;
    if (may_hedge && now_s >= start_s + plan_.hedge_s) {
      may_hedge = false;
      for (std::size_t i = 0; i < shares_.size(); ++i) Hedge(i);
    }
    Wait(may_hedge ? std::min(end_s, start_s + plan_.hedge_s) : end_s);
    // Asks may be added meanwhile, at the end.
    for (std::size_t i = 0; i < asks_.size(); ++i) {
      if (asks_[i].is_open) Turn(&asks_[i]);
    }
  }
  // No further line is asked: its answers would belong to no read.
  for (Share& share : shares_) share.was_hedged = true;
  const auto limit_ms = std::to_string(std::llround(plan_.deadline_s * 1e3));
  for (Ask& ask : asks_) {
    if (!ask.is_open) continue;
    if (shares_[ask.share].is_read) {
      // The other line was faster. What comes here belongs to no later read.
      lines_[ask.node].Close();
    } else {
      Fail(&ask, "did not answer within " + limit_ms + " ms", true);
    }
  }
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[i];
    if (share.rows.empty() || share.is_read) continue;
    failures_.push_back({i, std::move(share.why), std::move(share.rows)});
  }
}

bool Reading::IsDone() const {
  return std::all_of(shares_.begin(), shares_.end(),
                     [](const Share& share) { return share.rows.empty() || share.is_read; }) ||
         std::none_of(asks_.begin(), asks_.end(), [this](const Ask& ask) {
           return ask.is_open && !shares_[ask.share].is_read;
         });
}

void Reading::Start(std::size_t share, std::size_t node) {
  Ask& ask = asks_.emplace_back();
  ask.share = share;
  ask.node = node;
  if (!(*plan_.nodes)[node].IsUp(MonotonicSeconds())) {
    Fail(&ask, "did not answer just before", false);
  } else if (!lines_[node].Send(shares_[share].commands)) {
    Fail(&ask, "cannot be reached", true);
  }
}

void Reading::Hedge(std::size_t share) {
  Share& of = shares_[share];
  const std::size_t replica = plan_.num_nodes + share;
  if (of.rows.empty() || of.is_read || of.was_hedged || replica >= plan_.nodes->size()) return;
  of.was_hedged = true;
  ++num_hedged_;
  Start(share, replica);
}

void Reading::Fail(Ask* ask, const std::string& why, bool is_down) {
  ask->is_open = false;
  lines_[ask->node].Close();
  Node& node = (*plan_.nodes)[ask->node];
  if (is_down) node.Failed(MonotonicSeconds(), why);
  shares_[ask->share].why = why;
  Hedge(ask->share);
}

void Reading::Wait(double until_s) {
  std::vector<pollfd> files;
  for (const Ask& ask : asks_) {
    if (!ask.is_open) continue;
    const Line& line = lines_[ask.node];
    const auto events = static_cast<short>(line.has_to_write() ? POLLIN | POLLOUT : POLLIN);
    files.push_back({line.file(), events, 0});
  }
  const double left_s = std::max(until_s - MonotonicSeconds(), 0.0);
  const timespec left{static_cast<time_t>(left_s),
                      static_cast<long>((left_s - std::floor(left_s)) * 1e9)};
  ppoll(files.data(), files.size(), &left, nullptr);
}

void Reading::Turn(Ask* ask) {
  Share& share = shares_[ask->share];
  Line& line = lines_[ask->node];
  if (share.is_read) {
    ask->is_open = false;
    return line.Close();
  }
  bool is_lost = !line.Turn();
  while (!is_lost) {
    const Line::Reply reply = line.Next(&is_lost);
    if (reply == nullptr) break;
    const std::string wrong = Take(ask, reply);
    if (!wrong.empty()) return Fail(ask, wrong, wrong != kLaterOnly);
    ++ask->num_replies;
    const std::size_t num_first = share.rows.size() + 1;
    if (ask->num_replies == num_first && !ask->newer.empty()) {
      std::string commands;
      for (const std::size_t at : ask->newer) {
        const Wanted& wanted = (*rows_)[at];
        AppendCommand(
            {"GET",
             OldKey((*plan_.block_prefixes)[static_cast<std::size_t>(wanted.block)], wanted.row)},
            &commands);
      }
      is_lost = !line.Send(commands);
    } else if (ask->num_replies == num_first + ask->newer.size()) {
      share.is_read = true;
      ask->is_open = false;
      (*plan_.nodes)[ask->node].Answered();
      return;
    }
  }
  if (is_lost) Fail(ask, "cannot be reached", true);
}

std::string Reading::Take(Ask* ask, const Line::Reply& reply) {
  const Share& share = shares_[ask->share];
  if (reply->type == REDIS_REPLY_ERROR) return "refuses the read";
  if (ask->num_replies == 0) {
    const redisReply* const text = AsText(reply);
    // Of a node that has lost rows, was set back, or holds other deltas.
    if (text == nullptr || WholeIn(*text) != state_.number) {
      return "does not hold this state of the rows";
    }
    return {};
  }
  if (ask->num_replies <= share.rows.size()) {
    return TakeRow(ask, share.rows[ask->num_replies - 1], reply);
  }
  return TakeOld((*rows_)[ask->newer[ask->num_replies - 1 - share.rows.size()]], reply);
}

std::string Reading::TakeRow(Ask* ask, std::size_t at, const Line::Reply& reply) {
  const Wanted& wanted = (*rows_)[at];
  const StoredBlock& block = (*plan_.blocks)[static_cast<std::size_t>(wanted.block)];
  const redisReply* const text = AsText(reply);
  if (text == nullptr || static_cast<std::int64_t>(text->len) != block.record_bytes()) {
    return "lacks rows";
  }
  num_bytes_ += static_cast<std::int64_t>(text->len);
  if (NumberBefore(text->str) > state_.number) {
    ask->newer.push_back(at);
  } else {
    std::memcpy(wanted.to, text->str + kNumberBytes, static_cast<std::size_t>(block.row_bytes));
  }
  return {};
}

std::string Reading::TakeOld(const Wanted& wanted, const Line::Reply& reply) {
  const StoredBlock& block = (*plan_.blocks)[static_cast<std::size_t>(wanted.block)];
  const auto record_bytes = static_cast<std::size_t>(block.record_bytes());
  const redisReply* const text = AsText(reply);
  const std::size_t count = text == nullptr ? 0 : text->len / record_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const char* const record = text->str + i * record_bytes;
    if (NumberBefore(record) > state_.number) continue;
    std::memcpy(wanted.to, record + kNumberBytes, static_cast<std::size_t>(block.row_bytes));
    return {};
  }
  return kLaterOnly;
}

}  // namespace recsys
