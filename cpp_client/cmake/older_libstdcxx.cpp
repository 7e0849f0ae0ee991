// For Python modules in wheels: what g++ 12 would take from libstdc++ 12, GLIBCXX_3.4.30. With it,
// modules run on libstdc++ 11, as in systems with glibc 2.34.

#include <condition_variable>
#include <mutex>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 12
void std::condition_variable::wait(std::unique_lock<std::mutex>& lock) {
  _M_cond.wait(*lock.mutex());
}
#endif
