#ifndef RECSYS_OUTSIDE_READING_H_
#define RECSYS_OUTSIDE_READING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "ops/outside/outside_rows.h"
#include "outside/line.h"
#include "outside/node.h"
#include "outside/store_keys.h"

namespace recsys {

/// What is read, and how.
struct ReadingPlan {
  const std::vector<StoredBlock>* blocks = nullptr;
  /// By block.
  const std::vector<std::string>* block_prefixes = nullptr;
  std::string meta_key;
  /// By node; the second half are their replicas, if there are any.
  std::deque<Node>* nodes = nullptr;
  std::size_t num_nodes = 1;
  double deadline_s = 0;
  double hedge_s = 0;
};

/// Connections to all nodes, of one thread at a time.
using Lines = std::vector<Line>;

/// One read of rows: at most one pipeline of commands for each node, all at the same time.
class Reading {
 public:
  using Wanted = ops::OutsideRows::Wanted;

  /// `state`: that the rows are of; stays as it is while this lives.
  Reading(const ReadingPlan& plan, const RowsState& state, Lines* lines)
      : plan_(plan), state_(state), lines_(*lines) {}

  /// Reads rows. Returns when all were read, or have failed.
  void Run(const std::vector<Wanted>& rows);

  /// A node whose rows were not read.
  struct Failure {
    std::size_t node;
    /// What continues the sentence that begins with the node's name.
    std::string why;
    /// Positions of its rows.
    std::vector<std::size_t> rows;
  };
  const std::vector<Failure>& failures() const { return failures_; }
  std::int64_t num_hedged() const { return num_hedged_; }
  std::int64_t num_bytes() const { return num_bytes_; }

 private:
  /// The rows of a node.
  struct Share {
    std::vector<std::size_t> rows;
    std::string commands;
    bool is_read = false;
    /// Whether no line asks for it any more, and why.
    bool was_hedged = false;
    std::string why;
  };
  /// One line that asks for a share.
  struct Ask {
    std::size_t share = 0;
    /// Among nodes and replicas.
    std::size_t node = 0;
    std::size_t num_replies = 0;
    /// Positions of rows that the node has of later states only, whose earlier ones are asked for.
    std::vector<std::size_t> newer;
    bool is_open = true;
  };

  void MakeShares(const std::vector<Wanted>& rows);
  void Start(std::size_t share, std::size_t node);
  /// Asks a share's replica, if it has one that was not asked.
  void Hedge(std::size_t share);
  void Turn(Ask* ask);
  /// Takes one reply. Returns an empty text, or what is wrong with it.
  std::string Take(Ask* ask, const Line::Reply& reply);
  std::string TakeRow(Ask* ask, std::size_t at, const Line::Reply& reply);
  std::string TakeOld(const Wanted& wanted, const Line::Reply& reply);
  void Fail(Ask* ask, const std::string& why, bool is_down);
  void Wait(double until_s);
  bool IsDone() const;

  const ReadingPlan& plan_;
  const RowsState& state_;
  Lines& lines_;
  const std::vector<Wanted>* rows_ = nullptr;
  std::vector<Share> shares_;
  std::deque<Ask> asks_;
  std::vector<Failure> failures_;
  std::int64_t num_hedged_ = 0;
  std::int64_t num_bytes_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_OUTSIDE_READING_H_
