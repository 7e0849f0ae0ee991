#include "bench/sender.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace recsys::bench {
namespace {

/// Returns the share of lane `i` of `count` in a whole.
int Share(int whole, int i, int count) { return whole / count + (i < whole % count ? 1 : 0); }

}  // namespace

Sender::Sender(const Target& target, Requests requests, int num_lanes, std::uint64_t seed)
    : requests_(std::move(requests)) {
  if (num_lanes < 1 || target.num_connections < num_lanes) {
    throw std::invalid_argument("num_connections: got " + std::to_string(target.num_connections) +
                                " for " + std::to_string(num_lanes) +
                                " lanes, expected at least one lane, and one connection for each");
  }
  for (int i = 0; i < num_lanes; ++i) {
    Target own = target;
    own.num_connections = Share(target.num_connections, i, num_lanes);
    const Lane::Place place{static_cast<std::size_t>(i), static_cast<std::size_t>(num_lanes),
                            (seed << 20) + static_cast<std::uint64_t>(i) + 1};
    lanes_.push_back(std::make_unique<Lane>(own, &requests_, place));
  }
}

Sender::~Sender() {
  if (threads_.empty()) return;
  for (const auto& lane : lanes_) lane->Stop();
  Join();
}

bool Sender::Connect(double within_s) {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [&](const auto& lane) { return lane->Connect(within_s); });
}

void Sender::Start(const Step& step) {
  const int count = static_cast<int>(lanes_.size());
  if (step.is_open() && !requests_.is_recording && !(step.rate_per_s > 0)) {
    throw std::invalid_argument("rate_per_s: expected more than 0 without num_in_flight");
  }
  tally_.num_answered = 0;
  tally_.num_failed = 0;
  measured_ = {};
  // A closed loop with fewer requests than lanes uses fewer lanes.
  const int num_used = step.is_open() ? count : std::min(count, step.num_in_flight);
  num_running_ = static_cast<std::size_t>(num_used);
  for (int i = 0; i < num_used; ++i) {
    Step own = step;
    own.num_in_flight = Share(step.num_in_flight, i, count);
    own.max_in_flight = std::max(Share(step.max_in_flight, i, count), 1);
    own.rate_per_s = step.rate_per_s / count;
    threads_.emplace_back([this, own, lane = lanes_[static_cast<std::size_t>(i)].get()] {
      const Measured measured = lane->Run(own, &tally_);
      const std::lock_guard<std::mutex> lock(mutex_);
      measured_.Merge(measured);
      --num_running_;
      ended_.notify_all();
    });
  }
}

bool Sender::Wait(double at_most_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(at_most_s),
                         [this] { return num_running_ == 0; });
}

Measured Sender::Take() {
  Join();
  return std::move(measured_);
}

void Sender::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace recsys::bench
