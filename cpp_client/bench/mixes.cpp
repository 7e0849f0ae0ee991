#include "bench/mixes.h"

#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys::bench {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> Pieces(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const std::size_t comma = text.find(',');
    pieces.push_back(Trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return pieces;
    text.remove_prefix(comma + 1);
  }
}

template <typename T>
bool Reads(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

MixPart ParsePart(std::string_view choice, std::int64_t least) {
  MixPart part{-1, -1, 1.0};
  const std::size_t dash = choice.find('-');
  bool is_read = Reads(choice.substr(0, dash), &part.least);
  part.most = part.least;
  if (dash != std::string_view::npos) {
    is_read = is_read && Reads(choice.substr(dash + 1), &part.most);
  }
  if (!is_read || part.least < least || part.most < part.least || part.most > kMost) {
    throw Error(ErrorKind::kConfig, "got " + Repr(choice.substr(0, 40)) +
                                        ", expected a whole number from " + std::to_string(least) +
                                        " to " + std::to_string(kMost) +
                                        ", or a range such as 1-20");
  }
  return part;
}

double ParseWeight(std::string_view weight_text, std::string_view choice) {
  double weight = 0;
  if (!Reads(weight_text, &weight) || !(weight > 0) || !std::isfinite(weight)) {
    throw Error(ErrorKind::kConfig, "got the weight " + Repr(weight_text.substr(0, 40)) + " of " +
                                        Repr(choice.substr(0, 40)) + ", expected a number above 0");
  }
  return weight;
}

}  // namespace

std::string MixPart::label() const {
  const std::string first = std::to_string(least);
  return least == most ? first : first + "-" + std::to_string(most);
}

std::size_t Mix::DrawPart(Generator& generator) const {
  if (parts.size() == 1) return 0;
  std::vector<double> weights;
  for (const MixPart& part : parts) weights.push_back(part.weight);
  return std::discrete_distribution<std::size_t>(weights.begin(), weights.end())(generator);
}

std::int64_t Mix::DrawFrom(std::size_t part, Generator& generator) const {
  const MixPart& from = parts[part];
  if (from.least == from.most) return from.least;
  return std::uniform_int_distribution<std::int64_t>(from.least, from.most)(generator);
}

std::string Mix::text() const {
  if (parts.size() == 1) return parts[0].label();
  std::ostringstream out;
  for (const MixPart& part : parts) {
    out << (&part == parts.data() ? "" : ",") << part.label() << ':' << part.weight;
  }
  return out.str();
}

Mix ParseMix(const std::string& text, std::int64_t least) {
  Mix mix;
  mix.parts.clear();
  const auto pieces = Pieces(text);
  for (const std::string_view piece : pieces) {
    const std::size_t colon = piece.find(':');
    if (colon == std::string_view::npos && pieces.size() > 1) {
      throw Error(ErrorKind::kConfig,
                  "got " + Repr(piece.substr(0, 40)) +
                      ", expected CHOICE:WEIGHT where there are several choices");
    }
    const std::string_view choice = piece.substr(0, colon);
    MixPart part = ParsePart(choice, least);
    if (colon != std::string_view::npos) part.weight = ParseWeight(piece.substr(colon + 1), choice);
    mix.parts.push_back(part);
  }
  return mix;
}

}  // namespace recsys::bench
