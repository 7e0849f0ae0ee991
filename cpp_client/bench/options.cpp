#include "bench/options.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys::bench {
namespace {

constexpr std::size_t kHelpColumn = 30;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

const Option& Find(const std::string& name, const std::vector<OptionGroup>& groups) {
  std::vector<std::string> known;
  for (const OptionGroup& group : groups) {
    for (const Option& option : group.options) {
      for (const std::string& one : option.names) {
        if (one == name) return option;
        known.push_back(one);
      }
    }
  }
  Refuse("got " + Repr(name) + ", which is no option" + NearMisses(name, known));
}

std::string Number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

double Read(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_read = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return is_read ? value : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::vector<std::string> ReadOptions(const std::vector<std::string>& words,
                                     const std::vector<OptionGroup>& groups) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].rfind("--", 0) != 0) {
      rest.push_back(words[i]);
      continue;
    }
    const std::size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const Option& option = Find(name, groups);
    std::string value;
    if (equals != std::string::npos) {
      if (option.metavar.empty()) Refuse(name + ": got a value, expected none");
      value = words[i].substr(equals + 1);
    } else if (!option.metavar.empty()) {
      if (++i == words.size()) Refuse(name + ": got nothing, expected " + option.metavar);
      value = words[i];
    }
    try {
      option.take(value);
    } catch (const Error& error) {
      Refuse(name + ": " + error.what());
    }
  }
  return rest;
}

std::string DescribeOptions(const std::vector<OptionGroup>& groups) {
  std::string text;
  for (const OptionGroup& group : groups) {
    text += "\n" + group.heading + ":\n";
    for (const Option& option : group.options) {
      std::string line = "  ";
      for (const std::string& name : option.names) line += (line.size() > 2 ? ", " : "") + name;
      if (!option.metavar.empty()) line += " " + option.metavar;
      line += line.size() + 2 > kHelpColumn ? "\n" + std::string(kHelpColumn, ' ')
                                            : std::string(kHelpColumn - line.size(), ' ');
      text += line + option.help + "\n";
    }
  }
  return text;
}

int WholeNumber(const std::string& text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    Refuse("got " + text.substr(0, 40) + ", expected at least " + std::to_string(least));
  }
  return value;
}

double PositiveNumber(const std::string& text) {
  const double value = Read(text);
  if (!(value > 0) || !std::isfinite(value)) {
    Refuse("got " + text.substr(0, 40) + ", expected more than 0");
  }
  return value;
}

double NumberBetween(const std::string& text, double least, double most) {
  const double value = Read(text);
  if (!(value >= least) || !(value <= most)) {
    Refuse("got " + text.substr(0, 40) + ", expected " + Number(least) + " to " + Number(most));
  }
  return value;
}

}  // namespace recsys::bench
