#ifndef RECSYS_OUTSIDE_NODE_H_
#define RECSYS_OUTSIDE_NODE_H_

#include <atomic>
#include <string>
#include <utility>

#include "outside/line.h"

namespace recsys {

/// A server that rows are read from, and whether it answers. Thread-safe.
class Node {
 public:
  /// `name`: for messages, which show no address.
  Node(NodeAddress address, std::string name)
      : address_(std::move(address)), name_(std::move(name)) {}

  const NodeAddress& address() const { return address_; }
  const std::string& name() const { return name_; }

  /// Whether it may be asked: it has not failed just before.
  bool IsUp(double now_s) const { return now_s >= down_until_s_.load(std::memory_order_relaxed); }
  /// Notes that it failed: it is left alone for a while, which is longer each time.
  void Failed(double now_s, const std::string& why);
  void Answered();

 private:
  const NodeAddress address_;
  const std::string name_;
  std::atomic<double> down_until_s_{0};
  std::atomic<double> pause_s_{0};
};

}  // namespace recsys

#endif  // RECSYS_OUTSIDE_NODE_H_
