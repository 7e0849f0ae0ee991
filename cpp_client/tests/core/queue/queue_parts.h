#ifndef RECSYS_TESTS_CORE_QUEUE_QUEUE_PARTS_H_
#define RECSYS_TESTS_CORE_QUEUE_QUEUE_PARTS_H_

// What tests of the policy share: requests that only wait, and a clock that moves when told to.

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/core/queue/batch_queue.h"

namespace recsys {

/// Waits, and nothing else.
class Waiting : public Request {
 public:
  explicit Waiting(std::string name) { request_id = std::move(name); }
  void Read(const Servable&) override {}
  Message Encode(const Servable&, const Rows&) override { return {}; }
  void Done(const Status&, Message) override {}
};

inline std::shared_ptr<Waiting> Wait(const std::string& name, std::int64_t rows = 1,
                                     std::int64_t ids = 1, double deadline_s = kNever) {
  auto request = std::make_shared<Waiting>(name);
  request->checked.num_rows = rows;
  request->checked.num_ids = ids;
  request->deadline_s = deadline_s;
  return request;
}

inline std::shared_ptr<Waiting> WaitAt(const std::string& name, Priority priority,
                                       std::int64_t rows = 6) {
  auto request = Wait(name, rows);
  request->priority = priority;
  return request;
}

inline std::shared_ptr<Waiting> WaitSized(const std::string& name, std::int64_t num_bytes) {
  auto request = Wait(name);
  request->num_bytes = num_bytes;
  return request;
}

using Names = std::vector<std::string>;

inline Names NamesOf(const Requests& requests) {
  Names names;
  for (const auto& request : requests) names.push_back(request->request_id);
  return names;
}

struct Taken {
  Names batch, expired;
};

inline Taken TakeFrom(BatchQueue& queue) {
  Requests batch, expired;
  queue.Take(&batch, &expired);
  return {NamesOf(batch), NamesOf(expired)};
}

/// What had to leave.
inline Names PutInto(BatchQueue& queue, const std::shared_ptr<Request>& request) {
  Requests expired;
  queue.CheckSize(*request);
  if (const auto full = queue.Put(request, &expired)) throw BatchQueue::ErrorOf(*full);
  return NamesOf(expired);
}

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_QUEUE_QUEUE_PARTS_H_
