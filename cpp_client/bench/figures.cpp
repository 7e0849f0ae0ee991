#include "bench/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace recsys::bench {
namespace {

// A request is late if it was sent so long after it should have been, or later than a tenth of the
// measured p99.
constexpr double kLateMs = 1.0;
constexpr double kLateShareOfP99 = 0.1;
// Where more of the requests were late, the numbers are the tool's more than the server's.
constexpr double kMostLate = 0.01;
// Threads that take so much of their cores may well be what bounds the throughput.
constexpr double kBusy = 0.9;
// A rate counts as answered if so much of it was.
constexpr double kMinAchieved = 0.95;

std::vector<std::string> WarningsOf(const Measured& measured, const Effort& effort) {
  std::vector<std::string> warnings;
  const auto unsent = measured.errors.find(kNotSent);
  if (unsent != measured.errors.end()) {
    warnings.push_back(std::to_string(unsent->second) +
                       " requests were not sent: too many were unanswered (--max-in-flight)");
  }
  if (effort.cpu_share > kBusy * effort.num_threads) {
    warnings.push_back(
        "the sending threads used more than 90% of " +
        (effort.num_threads == 1 ? "a core" : std::to_string(effort.num_threads) + " cores") +
        ": the client may be what bounds these numbers; use more --threads");
  }
  return warnings;
}

Json FiguresIfAny(const Latencies& latencies) {
  return latencies.count() == 0 ? Json(nullptr) : latencies.FiguresMs();
}

}  // namespace

const char* NameOf(Verdict verdict) {
  static constexpr const char* kNames[] = {"ok", "slow", "failed", "behind", "late"};
  return kNames[static_cast<int>(verdict)];
}

const char* TextOf(Verdict verdict) {
  static constexpr const char* kTexts[] = {"within the bound", "p99 above the bound",
                                           "requests failed", "answers fell behind the rate",
                                           "the client sent too late"};
  return kTexts[static_cast<int>(verdict)];
}

Figures FiguresOf(Measured measured, const Step& step, const Effort& effort,
                  std::vector<std::string> kind_names) {
  Figures made;
  made.asked_per_s = step.rate_per_s;
  made.num_in_flight = step.num_in_flight;
  made.duration_s = step.duration_s;
  made.requests_per_s = static_cast<double>(measured.num_in_time) / step.duration_s;
  made.rows_per_s = static_cast<double>(measured.num_rows) / step.duration_s;
  made.p99_ms = measured.latencies.QuantileMs(0.99);
  made.late_ms = std::max(kLateMs, kLateShareOfP99 * made.p99_ms.value_or(0));
  made.late_share = measured.lags.ShareAbove(made.late_ms * 1e-3);
  made.is_valid = made.late_share <= kMostLate;
  made.warnings = WarningsOf(measured, effort);
  made.generator_cpu_shares = {std::round(effort.cpu_share * 1000) / 1000};
  made.kind_names = std::move(kind_names);
  made.measured = std::move(measured);
  return made;
}

std::string Figures::late_text() const {
  if (is_valid) return {};
  char text[300];
  std::snprintf(text, sizeof text,
                "not valid: %.1f%% of the requests were sent more than %.3g ms late (at most 1%% "
                "may be): the client "
                "could not keep the rate; use more --threads, or another machine",
                late_share * 100, late_ms);
  return text;
}

Json Figures::ToJson() const {
  Json json;
  json["asked_per_s"] = asked_per_s > 0 ? Json(asked_per_s) : Json(nullptr);
  json["num_in_flight"] = num_in_flight > 0 ? Json(num_in_flight) : Json(nullptr);
  json["duration_s"] = duration_s;
  json["requests_per_s"] = requests_per_s;
  json["rows_per_s"] = rows_per_s;
  json["num_answered"] = measured.num_answered();
  json["num_failed"] = measured.num_failed();
  json["errors"] = measured.errors;
  json["error_texts"] = measured.texts;
  json["latency_ms"] = measured.latencies.FiguresMs();
  json["service_ms"] = FiguresIfAny(measured.services);
  json["lag_ms"] = FiguresIfAny(measured.lags);
  json["late_share"] = late_share;
  json["late_ms"] = late_ms;
  json["is_valid"] = is_valid;
  json["warnings"] = warnings;
  json["generator_cpu_shares"] = generator_cpu_shares;
  json["kinds"] = Json::object();
  for (std::size_t i = 0; i < kind_names.size() && i < measured.kinds.size(); ++i) {
    const Measured::Kind& kind = measured.kinds[i];
    json["kinds"][kind_names[i]] = {{"num_answered", kind.latencies.count()},
                                    {"num_failed", kind.num_failed},
                                    {"latency_ms", kind.latencies.FiguresMs()}};
  }
  json["series"] = measured.series.Points(duration_s);
  json["histogram"] = measured.latencies.Histogram();
  return json;
}

// What a late client adds stands in the latencies: a rate that passes in spite of it passes; one
// that does not is put down to the client.
Verdict VerdictOf(const Figures& made, double p99_ms) {
  if (made.measured.num_failed() > 0 || !made.p99_ms) return Verdict::kFailed;
  if (*made.p99_ms > p99_ms) return made.is_valid ? Verdict::kSlow : Verdict::kLate;
  const double due_per_s = static_cast<double>(made.measured.num_answered()) / made.duration_s;
  return made.requests_per_s < kMinAchieved * due_per_s ? Verdict::kBehind : Verdict::kOk;
}

}  // namespace recsys::bench
