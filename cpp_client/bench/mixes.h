#ifndef RECSYS_BENCH_MIXES_H_
#define RECSYS_BENCH_MIXES_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace recsys::bench {

using Generator = std::mt19937_64;

/// One choice: all whole numbers from `least` to `most`, each as likely as the others.
struct MixPart {
  std::int64_t least;
  std::int64_t most;
  double weight;

  /// As it stands in the option.
  std::string label() const;
};

/// Whole numbers drawn by weight, as options say them: `8`, `1-20`, `1:0.9,50:0.1`.
struct Mix {
  /// At least one, weights above 0.
  std::vector<MixPart> parts{{1, 1, 1.0}};

  std::size_t DrawPart(Generator& generator) const;
  std::int64_t DrawFrom(std::size_t part, Generator& generator) const;
  std::int64_t Draw(Generator& generator) const { return DrawFrom(DrawPart(generator), generator); }
  std::string text() const;
};

/// Throws Error (kConfig): it is no such text.
Mix ParseMix(const std::string& text, std::int64_t least = 0);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_MIXES_H_
