#ifndef RECSYS_BENCH_REPORT_H_
#define RECSYS_BENCH_REPORT_H_

#include <string>

#include "bench/run.h"

namespace recsys::bench {

/// Everything that matters, for people: one line that says what came out, how it was measured, and
/// tables.
std::string Report(const Result& result);

/// Progress on one line of standard error, where that is a terminal; nothing elsewhere, but for the
/// steps of a search. The line is cleared at the end.
class Display {
 public:
  explicit Display(bool says_steps);
  ~Display();
  Progress Start(const std::string& what, double length_s);

 private:
  const bool is_terminal_;
  const bool says_steps_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_REPORT_H_
