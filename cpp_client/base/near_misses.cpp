#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/text.h"
#include "base/utf8.h"

namespace recsys {
namespace {

// Of the ratio, from 0 to 1: what is near at all, and what is about as near as the nearest.
constexpr double kNear = 0.6;
constexpr double kAsNear = 0.05;
// Names longer than this are compared by their beginning: the comparison takes the product of both
// lengths.
constexpr std::size_t kMaxCompared = 1000;

using Codes = std::vector<std::uint32_t>;

Codes CodesOf(std::string_view text) {
  Codes codes;
  for (std::size_t at = 0; at < text.size() && codes.size() < kMaxCompared;) {
    const Utf8Char found = CharAt(text, at);
    codes.push_back(found.code);
    at += found.num_bytes;
  }
  return codes;
}

/// Ratcliff and Obershelp's measure as Python's difflib takes it: twice the characters of the
/// longest common run and, again and again, of those to its left and right, over all characters.
class Matcher {
 public:
  explicit Matcher(const Codes& b) : b_(b) {
    for (std::size_t j = 0; j < b.size(); ++j) places_[b[j]].push_back(j);
    if (b.size() < 200) return;
    // Of long texts, difflib begins no run at characters that are more than a hundredth of all.
    for (auto at = places_.begin(); at != places_.end();) {
      at = at->second.size() > b.size() / 100 + 1 ? places_.erase(at) : std::next(at);
    }
  }

  double Ratio(const Codes& a) const {
    const std::size_t num = a.size() + b_.size();
    if (num == 0) return 1.0;
    return 2.0 * static_cast<double>(NumMatching(a)) / static_cast<double>(num);
  }

 private:
  struct Area {
    std::size_t a_start, a_end, b_start, b_end;
  };
  struct Run {
    std::size_t a, b, size;
  };

  std::size_t NumMatching(const Codes& a) const {
    std::size_t sum = 0;
    std::vector<Area> left{{0, a.size(), 0, b_.size()}};
    while (!left.empty()) {
      const Area area = left.back();
      left.pop_back();
      const Run run = Longest(a, area);
      if (run.size == 0) continue;
      sum += run.size;
      left.push_back({area.a_start, run.a, area.b_start, run.b});
      left.push_back({run.a + run.size, area.a_end, run.b + run.size, area.b_end});
    }
    return sum;
  }

  Run Longest(const Codes& a, const Area& area) const {
    Run best{area.a_start, area.b_start, 0};
    // By the place in b plus 1: the length of the run that ends there and at the last place in a.
    std::vector<std::size_t> lengths(b_.size() + 1), next(b_.size() + 1);
    for (std::size_t i = area.a_start; i < area.a_end; ++i) {
      std::fill(next.begin(), next.end(), 0);
      const auto found = places_.find(a[i]);
      if (found != places_.end()) {
        for (const std::size_t j : found->second) {
          if (j < area.b_start || j >= area.b_end) continue;
          const std::size_t size = next[j + 1] = lengths[j] + 1;
          if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
        }
      }
      lengths.swap(next);
    }
    return Extended(a, area, best);
  }

  Run Extended(const Codes& a, const Area& area, Run run) const {
    while (run.a > area.a_start && run.b > area.b_start && a[run.a - 1] == b_[run.b - 1]) {
      run = {run.a - 1, run.b - 1, run.size + 1};
    }
    while (run.a + run.size < area.a_end && run.b + run.size < area.b_end &&
           a[run.a + run.size] == b_[run.b + run.size]) {
      ++run.size;
    }
    return run;
  }

  const Codes& b_;
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> places_;
};

}  // namespace

std::string NearMisses(std::string_view name, const std::vector<std::string>& known) {
  const Codes codes = CodesOf(name);
  const Matcher matcher(codes);
  std::map<std::string, double> ratios;
  double best = 0.0;
  for (const std::string& candidate : known) {
    const double ratio = ratios[candidate] = matcher.Ratio(CodesOf(candidate));
    best = std::max(best, ratio);
  }
  std::string near;
  for (const auto& [candidate, ratio] : ratios) {
    if (ratio < std::max(kNear, best - kAsNear)) continue;
    near += (near.empty() ? "" : " or ") + candidate;
  }
  return near.empty() ? "" : "; did you mean " + near + "?";
}

}  // namespace recsys
