#include "server/http/rest_route.h"

#include <string_view>
#include <vector>

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr char kTimeout[] = "timeout_ms";
constexpr std::string_view kPredictSuffix = ":predict";
constexpr std::size_t kMaxDigits = 12;
constexpr std::size_t kMaxShown = 32;
constexpr double kMsPerSecond = 1e3;

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

/// Takes the words off the front, if they are there.
bool TakeWords(std::vector<std::string>* parts, std::initializer_list<std::string_view> words) {
  if (parts->size() < words.size()) return false;
  std::size_t i = 0;
  for (const std::string_view word : words) {
    if ((*parts)[i++] != word) return false;
  }
  parts->erase(parts->begin(), parts->begin() + static_cast<std::ptrdiff_t>(words.size()));
  return true;
}

/// Takes a model's name, and perhaps a version's, off the front.
bool TakeNames(std::vector<std::string>* parts, RestRoute* route) {
  if (parts->empty() || (*parts)[0].empty()) return false;
  route->model = PercentDecoded((*parts)[0]);
  parts->erase(parts->begin());
  if (parts->size() >= 2 && (*parts)[0] == "versions" && !(*parts)[1].empty()) {
    route->version = PercentDecoded((*parts)[1]);
    parts->erase(parts->begin(), parts->begin() + 2);
  }
  return true;
}

std::optional<RestRoute> FindV1(std::vector<std::string> parts) {
  if (!TakeWords(&parts, {"models"}) || parts.empty()) return std::nullopt;
  std::string& last = parts.back();
  const bool is_predict =
      last.size() > kPredictSuffix.size() &&
      last.compare(last.size() - kPredictSuffix.size(), last.npos, kPredictSuffix) == 0;
  if (!is_predict) return std::nullopt;
  last.resize(last.size() - kPredictSuffix.size());
  RestRoute route;
  route.action = RestAction::kPredict;
  if (!TakeNames(&parts, &route) || !parts.empty()) return std::nullopt;
  return route;
}

std::optional<RestRoute> FindModels(std::vector<std::string> parts) {
  if (parts.size() == 1 && parts[0] == "stats") return RestRoute{RestAction::kStatistics, "", ""};
  RestRoute route;
  if (!TakeNames(&parts, &route) || parts.size() > 1) return std::nullopt;
  const std::string what = parts.empty() ? "" : parts[0];
  if (parts.empty()) {
    route.action = RestAction::kMetadata;
  } else if (what == "ready") {
    route.action = RestAction::kModelReady;
  } else if (what == "config") {
    route.action = RestAction::kConfig;
  } else if (what == "stats") {
    route.action = RestAction::kStatistics;
  } else if (what == "infer") {
    route.action = RestAction::kInfer;
  } else {
    return std::nullopt;
  }
  return route;
}

}  // namespace

std::optional<RestRoute> FindRoute(const std::string& path) {
  if (path.empty() || path[0] != '/') return std::nullopt;
  std::vector<std::string> parts = Split(std::string_view(path).substr(1), '/');
  if (TakeWords(&parts, {"v1"})) return FindV1(std::move(parts));
  if (!TakeWords(&parts, {"v2"})) return std::nullopt;
  if (parts.empty()) return RestRoute{RestAction::kServer, "", ""};
  if (TakeWords(&parts, {"models"})) return FindModels(std::move(parts));
  if (parts.size() != 2) return std::nullopt;
  if (TakeWords(&parts, {"health", "live"})) return RestRoute{RestAction::kLive, "", ""};
  if (TakeWords(&parts, {"health", "ready"})) return RestRoute{RestAction::kReady, "", ""};
  if (TakeWords(&parts, {"repository", "index"})) return RestRoute{RestAction::kIndex, "", ""};
  return std::nullopt;
}

std::optional<double> TimeoutOf(const std::string& query) {
  std::optional<std::string> timeout;
  for (const std::string& part : Split(query, '&')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    const std::string name = PercentDecoded(part.substr(0, equals), true);
    if (name != kTimeout) {
      throw Error(ErrorKind::kRequest, "address: got an unknown parameter " + Short(name) +
                                           ", expected 'timeout_ms' at most");
    }
    if (timeout) continue;
    timeout = equals == part.npos ? "" : PercentDecoded(part.substr(equals + 1), true);
  }
  if (!timeout) return std::nullopt;
  return static_cast<double>(WholeNumber(kTimeout, *timeout)) / kMsPerSecond;
}

std::int64_t WholeNumber(const std::string& field, const std::string& text) {
  const bool is_number = !text.empty() && text.size() <= kMaxDigits &&
                         text.find_first_not_of("0123456789") == text.npos;
  if (!is_number) {
    throw Error(ErrorKind::kRequest,
                field + ": got " + Repr(FirstChars(text, kMaxShown)) + ", expected a whole number");
  }
  return std::stoll(text);
}

}  // namespace recsys
