#include "config/arguments.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"

namespace recsys {
namespace {

constexpr char kHelp[] = "--help";
constexpr char kShortHelp[] = "-h";
constexpr char kConfig[] = "--config";
constexpr char kCheckConfig[] = "--check-config";
constexpr char kJson[] = "--json";

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

/// What argparse takes for a number, and so for a value: -1, -.5, -1.5.
bool IsNegativeNumber(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  const std::string rest = word.substr(1);
  const std::size_t point = rest.find('.');
  const std::string digits =
      point == rest.npos ? rest : rest.substr(0, point) + rest.substr(point + 1);
  return rest.back() != '.' && !digits.empty() &&
         digits.find_first_not_of("0123456789") == digits.npos;
}

/// Whether it is read as a flag, known or not.
bool LooksLikeFlag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !IsNegativeNumber(word) &&
         word.find(' ') == word.npos;
}

std::map<std::string, Flag> KnownFlags() {
  std::map<std::string, Flag> known;
  for (const Flag& flag : OwnFlags()) known.emplace(flag.name, flag);
  known.emplace(kShortHelp, known.at(kHelp));
  for (const Section& section : Sections()) {
    for (const Flag& flag : FlagsOf(section)) known.emplace(flag.name, flag);
  }
  return known;
}

class Reader {
 public:
  Reader(const std::vector<std::string>& words, int columns)
      : words_(words), columns_(columns), known_(KnownFlags()) {}

  Arguments Read() {
    bool only_positional = false;
    while (at_ < words_.size()) {
      const std::string& word = words_[at_++];
      if (!only_positional && word == "--") {
        only_positional = true;
      } else if (!only_positional && LooksLikeFlag(word)) {
        TakeFlag(word);
      } else if (!artifact_) {
        artifact_ = word;
      } else {
        unknown_.push_back(word);
      }
    }
    if (!unknown_.empty()) {
      std::string text = "unrecognized arguments:";
      for (const std::string& word : unknown_) text += " " + word;
      Refuse(text);
    }
    return Made();
  }

 private:
  void TakeFlag(const std::string& word) {
    const std::size_t sign = word.find('=');
    const bool is_whole = sign == word.npos || known_.count(word) > 0;
    const std::string name = is_whole ? word : word.substr(0, sign);
    const auto found = known_.find(name);
    if (found == known_.end()) {
      unknown_.push_back(word);
      return;
    }
    const Flag& flag = found->second;
    std::optional<std::string> value;
    if (!is_whole) value = word.substr(sign + 1);
    if (flag.value_name.empty()) {
      if (value) Refuse("argument " + Named(flag) + ": ignored explicit argument " + Repr(*value));
      value = flag.word;
    } else if (!value) {
      if (at_ == words_.size() || words_[at_] == "--" || LooksLikeFlag(words_[at_])) {
        Refuse("argument " + Named(flag) + ": expected one argument");
      }
      value = words_[at_++];
    }
    Keep(flag, *value);
  }

  void Keep(const Flag& flag, const std::string& value) {
    if (flag.name == kHelp) throw UsageExit{0, HelpText(columns_)};
    if (!flag.group.empty()) {
      const auto [other, is_first] = groups_.emplace(flag.group, flag.name);
      if (!is_first && other->second != flag.name) {
        Refuse("argument " + flag.name + ": not allowed with argument " + other->second);
      }
    }
    if (flag.name == kConfig) made_.config = CleanPath(value);
    if (flag.name == kCheckConfig) made_.check_config = true;
    if (flag.name == kJson) made_.json = true;
    if (!flag.key.empty()) texts_[flag.key] = value;
  }

  Arguments Made() {
    for (const Section& section : Sections()) {
      for (const Option& option : section.options) {
        const auto found = texts_.find(option.key());
        if (found != texts_.end()) made_.flags.emplace_back(found->first, found->second);
        if (IsPositional(option)) positional_ = option.key();
      }
    }
    if (artifact_) made_.flags.emplace_back(positional_, *artifact_);
    return std::move(made_);
  }

  static std::string Named(const Flag& flag) {
    return flag.name == kHelp ? std::string(kShortHelp) + "/" + kHelp : flag.name;
  }

  /// Ends with what is wrong, and with what was probably meant by the first word that looks like a
  /// flag and is none.
  [[noreturn]] void Refuse(std::string text) const {
    for (const std::string& word : words_) {
      const std::string name = word.substr(0, word.find('='));
      const bool looks_like_one =
          StartsWith(word, "--") && word.size() > 2 && word[2] >= 'a' && word[2] <= 'z';
      if (!looks_like_one || known_.count(name) > 0) continue;
      if (text.find(name) == text.npos) text += "; got " + name;
      std::vector<std::string> names;
      for (const auto& [known, flag] : known_) names.push_back(known);
      text += NearMisses(name, names);
      break;
    }
    throw UsageExit{2, UsageLine() + kProgram + ": error: " + text + "\n"};
  }

  const std::vector<std::string>& words_;
  int columns_;
  std::map<std::string, Flag> known_;
  std::size_t at_ = 0;
  std::optional<std::string> artifact_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::string> groups_;
  std::vector<std::string> unknown_;
  std::string positional_;
  Arguments made_;
};

}  // namespace

Arguments ReadArguments(const std::vector<std::string>& words, int columns) {
  return Reader(words, columns).Read();
}

}  // namespace recsys
