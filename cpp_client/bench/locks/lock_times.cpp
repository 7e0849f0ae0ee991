// A library for LD_PRELOAD that measures mutexes: how often each place in the code locks one, how
// long it waits and how long it holds it. benchmarks/server/locks.py runs a server with it; no
// release contains it.
//
// At the end of the process a line for each place is written to the file that RECSYS_LOCK_TIMES
// names: module, offset of the call in it, number of times, seconds waited, seconds held (holds of
// less than 20 us), longest hold. What it measures includes its own cost, which the last line
// tells: "nothing", and the seconds waited and held by one lock around nothing.

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace {

double Seconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// What one place has done.
struct Times {
  std::int64_t num = 0;
  double waited_s = 0;
  double held_s = 0;
  double longest_s = 0;

  void Add(const Times& other) {
    num += other.num;
    waited_s += other.waited_s;
    held_s += other.held_s;
    longest_s = other.longest_s > longest_s ? other.longest_s : longest_s;
  }
};

// Whoever holds a mutex for longer has most likely lost the processor: this is not summed up.
constexpr double kPreemptedS = 20e-6;
constexpr std::size_t kMostPlaces = 512;
constexpr std::size_t kMostHeld = 16;
constexpr std::size_t kMostThreads = 1024;

/// One thread's places, by a hash of the address, and the mutexes that it holds. Never freed: the
/// end of the process reads it. Only its own thread writes it.
struct Thread {
  struct Place {
    void* address = nullptr;
    Times times;
  };
  struct Held {
    pthread_mutex_t* mutex = nullptr;
    void* address = nullptr;
    double asked_s = 0;
    double since_s = 0;
  };
  std::array<Place, kMostPlaces> places;
  std::array<Held, kMostHeld> held;
  std::size_t num_held = 0;

  void Count(void* address, const Times& times) {
    std::size_t at = (reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15U >> 32);
    for (std::size_t tries = 0; tries < kMostPlaces; ++tries, ++at) {
      Place& place = places[at % kMostPlaces];
      if (place.address != nullptr && place.address != address) continue;
      place.address = address;
      return place.times.Add(times);
    }
  }
};

std::array<std::atomic<Thread*>, kMostThreads> threads;
std::atomic<std::size_t> num_threads{0};
thread_local Thread* of_this_thread = nullptr;
thread_local bool is_inside = false;

Thread* OfThisThread() {
  if (of_this_thread == nullptr) {
    const std::size_t number = num_threads.fetch_add(1);
    if (number >= kMostThreads) return nullptr;
    of_this_thread = new Thread;
    threads[number] = of_this_thread;
  }
  return of_this_thread;
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void Began(pthread_mutex_t* mutex, void* address, double asked_s) {
  if (is_inside) return;
  is_inside = true;
  Thread* const thread = OfThisThread();
  if (thread != nullptr && thread->num_held < kMostHeld) {
    thread->held[thread->num_held++] = {mutex, address, asked_s, Seconds()};
  }
  is_inside = false;
}

/// What a thread has done with a mutex that it no longer holds.
struct Done {
  /// Null if nothing is known.
  void* address = nullptr;
  Times times;
};

/// To be counted once the mutex is free, so that it is not held for longer by that.
Done Ended(pthread_mutex_t* mutex) {
  if (is_inside || of_this_thread == nullptr) return {};
  const double now_s = Seconds();
  Thread& thread = *of_this_thread;
  for (std::size_t i = thread.num_held; i-- > 0;) {
    const Thread::Held held = thread.held[i];
    if (held.mutex != mutex) continue;
    for (--thread.num_held; i < thread.num_held; ++i) thread.held[i] = thread.held[i + 1];
    Done done = {held.address, {1, held.since_s - held.asked_s, 0, now_s - held.since_s}};
    if (done.times.longest_s < kPreemptedS) done.times.held_s = done.times.longest_s;
    return done;
  }
  return {};
}

void Count(const Done& done) {
  if (done.address != nullptr) of_this_thread->Count(done.address, done.times);
}

int RealLock(pthread_mutex_t* mutex) {
  static auto* const real = Real<decltype(pthread_mutex_lock)>("pthread_mutex_lock");
  return real(mutex);
}

int RealUnlock(pthread_mutex_t* mutex) {
  static auto* const real = Real<decltype(pthread_mutex_unlock)>("pthread_mutex_unlock");
  return real(mutex);
}

/// Returns what is measured of one lock around nothing.
Times OfNothing() {
  constexpr std::int64_t kTimes = 100'000;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  Times sum;
  for (std::int64_t i = 0; i < kTimes; ++i) {
    const double asked_s = Seconds();
    RealLock(&mutex);
    Began(&mutex, &sum, asked_s);
    const Done done = Ended(&mutex);
    RealUnlock(&mutex);
    sum.Add(done.times);
  }
  return sum;
}

void Write() {
  const char* const path = std::getenv("RECSYS_LOCK_TIMES");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  const Times nothing = OfNothing();
  is_inside = true;
  std::map<void*, Times> sums;
  for (std::size_t i = 0; i < num_threads && i < kMostThreads; ++i) {
    const Thread* const thread = threads[i];
    if (thread == nullptr) continue;
    for (const Thread::Place& place : thread->places) {
      if (place.address != nullptr) sums[place.address].Add(place.times);
    }
  }
  for (const auto& [address, times] : sums) {
    Dl_info about = {};
    if (dladdr(address, &about) == 0 || about.dli_fname == nullptr) continue;
    const auto offset = static_cast<const char*>(address) - static_cast<char*>(about.dli_fbase);
    std::fprintf(file, "%s %#tx %lld %.9f %.9f %.9f\n", about.dli_fname, offset,
                 static_cast<long long>(times.num),  // NOLINT(google-runtime-int): printf's own
                 times.waited_s, times.held_s, times.longest_s);
  }
  std::fprintf(file, "nothing 0 %lld %.9f %.9f %.9f\n",
               static_cast<long long>(nothing.num),  // NOLINT(google-runtime-int): printf's own
               nothing.waited_s, nothing.held_s, nothing.longest_s);
  std::fclose(file);
}

}  // namespace

// The program calls these in place of the C library's.
extern "C" {

// recsys-serve ends by it, without destructors.
[[noreturn]] void _exit(int code) {
  static auto* const real = Real<void(int)>("_exit");
  Write();
  real(code);
  std::abort();
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  const double asked_s = Seconds();
  const int result = RealLock(mutex);
  Began(mutex, __builtin_return_address(0), asked_s);
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  const Done done = Ended(mutex);
  const int result = RealUnlock(mutex);
  Count(done);
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static auto* const real = Real<decltype(pthread_cond_wait)>("pthread_cond_wait");
  const Done done = Ended(mutex);
  Count(done);
  const int result = real(condition, mutex);
  if (done.address != nullptr) Began(mutex, done.address, Seconds());
  return result;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static auto* const real = Real<decltype(pthread_cond_clockwait)>("pthread_cond_clockwait");
  const Done done = Ended(mutex);
  Count(done);
  const int result = real(condition, mutex, clock, until);
  if (done.address != nullptr) Began(mutex, done.address, Seconds());
  return result;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static auto* const real = Real<decltype(pthread_cond_timedwait)>("pthread_cond_timedwait");
  const Done done = Ended(mutex);
  Count(done);
  const int result = real(condition, mutex, until);
  if (done.address != nullptr) Began(mutex, done.address, Seconds());
  return result;
}

}  // extern "C"
