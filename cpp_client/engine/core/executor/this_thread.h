#ifndef RECSYS_ENGINE_CORE_EXECUTOR_THIS_THREAD_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_THIS_THREAD_H_

#include <cstdint>
#include <string>
#include <vector>

namespace recsys {

/// Names the calling thread, as far as the system keeps names.
void NameThread(const std::string& name);
/// Restricts the calling thread to these processors. Throws Error (kExecution) if that fails.
void StayOn(const std::vector<std::int64_t>& cpus);
/// Returns how often another thread has preempted the calling one.
std::int64_t NumPreempted();

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_THIS_THREAD_H_
