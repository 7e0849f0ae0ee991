#ifndef RECSYS_BENCH_OPTIONS_H_
#define RECSYS_BENCH_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

namespace recsys::bench {

/// One option of a command line.
struct Option {
  /// The first is the one that is shown; the others mean the same.
  std::vector<std::string> names;
  /// Of its value; empty for a flag.
  std::string metavar;
  std::string help;
  /// Takes the value (empty of a flag); throws Error (kConfig) that names no option.
  std::function<void(const std::string&)> take;
};

/// A heading and what stands under it.
struct OptionGroup {
  std::string heading;
  std::vector<Option> options;
};

/// Reads `--name value` and `--name=value`; returns what is no option, in order.
/// Throws Error (kConfig) with the option's name; for unknown ones with what was probably meant.
std::vector<std::string> ReadOptions(const std::vector<std::string>& words,
                                     const std::vector<OptionGroup>& groups);

/// What --help shows of them.
std::string DescribeOptions(const std::vector<OptionGroup>& groups);

/// Whole and other numbers; throw Error (kConfig) `got ..., expected ...`.
int WholeNumber(const std::string& text, int least);
double PositiveNumber(const std::string& text);
double NumberBetween(const std::string& text, double least, double most);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_OPTIONS_H_
