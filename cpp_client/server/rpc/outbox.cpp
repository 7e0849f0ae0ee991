#include "server/rpc/outbox.h"

#include <grpc/support/time.h>

#include <utility>

namespace recsys {
namespace {

thread_local const grpc_completion_queue* polled_here = nullptr;

}  // namespace

void Outbox::Post(Outgoing* outgoing) {
  Outgoing* newest = newest_.load(std::memory_order_relaxed);
  do {
    outgoing->next_ = newest;
  } while (!newest_.compare_exchange_weak(newest, outgoing, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
  // What the thread finds in the box, whoever put it there, it sends: one waking is enough.
  if (newest == nullptr) {
    alarm_.Set(queue_, gpr_inf_past(GPR_CLOCK_MONOTONIC), static_cast<Completion*>(this));
  }
}

void Outbox::Completed(bool /*ok*/) {
  Outgoing* newest = newest_.exchange(nullptr, std::memory_order_acq_rel);
  Outgoing* oldest = nullptr;
  while (newest != nullptr) {
    Outgoing* const next = std::exchange(newest->next_, oldest);
    oldest = std::exchange(newest, next);
  }
  while (oldest != nullptr) {
    Outgoing* const next = oldest->next_;
    oldest->Send();
    oldest = next;
  }
}

bool IsPolledHere(const grpc_completion_queue* queue) { return polled_here == queue; }

void PollsHere(const grpc_completion_queue* queue) { polled_here = queue; }

}  // namespace recsys
