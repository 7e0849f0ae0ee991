#include "bench/run.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "bench/environment.h"
#include "client/messages.h"
#include "recsys/v1/predict.pb.h"

namespace recsys::bench {
namespace {

// A step of a search lasts until so many requests were due, so that its p99 stands on more than ten
// of them; but no longer than kLongestStepS.
constexpr double kMinStepRequests = 1000;
constexpr double kLongestStepS = 30;
// The closed loop that suggests where a search begins.
constexpr double kProbeS = 2;
constexpr int kProbeInFlight = 32;

ModelMetadata FromFile(std::ifstream* file) {
  const std::string text{std::istreambuf_iterator<char>(*file), std::istreambuf_iterator<char>()};
  v1::ModelMetadata message;
  google::protobuf::TextFormat::Parser parser;
  if (!parser.ParseFromString(text, &message)) {
    throw Error(ErrorKind::kConfig,
                "--describe: expected host:port of a server, or a file that recsys-predict ADDRESS "
                "--metadata printed");
  }
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  return client::MetadataOf({std::nullopt, grpc::ByteBuffer(&slice, 1), 1});
}

/// From a file, if there is one of that name, else from a server.
ModelMetadata MetadataFor(const Settings& settings) {
  if (settings.shape.payload_bytes > 0) return {};
  if (!settings.describe.empty()) {
    std::ifstream file(settings.describe);
    if (file.is_open()) return FromFile(&file);
  }
  ClientOptions options;
  options.timeout_s = settings.timeout_s;
  options.model = settings.shape.model;
  options.version = settings.shape.version;
  options.tls = settings.tls;
  Client client(settings.describe.empty() ? settings.address : settings.describe, options);
  return client.Metadata();
}

Figures MeasureOnce(const Settings& settings, Load* load, const Begin& begin) {
  Step step;
  step.duration_s = settings.duration_s;
  step.warm_up_s = settings.warm_up_s;
  step.num_in_flight = settings.num_in_flight;
  step.rate_per_s = settings.rate_per_s;
  step.max_in_flight = settings.max_in_flight;
  return load->Measure(step, begin("measuring", step.duration_s));
}

/// Half of what a short closed loop gets.
double Suggestion(const Settings& settings, Load* load, const Begin& begin) {
  Step step;
  step.duration_s = kProbeS;
  step.warm_up_s = settings.warm_up_s;
  step.num_in_flight = std::max(kProbeInFlight, settings.num_connections);
  const Figures made = load->Measure(step, begin("a first guess", step.duration_s));
  if (made.measured.num_in_time == 0) {
    const auto& texts = made.measured.texts;
    throw ClientError(StatusCode::kUnavailable,
                      "no request was answered: " +
                          (texts.empty() ? "no answer in time"
                                         : texts.begin()->first + ": " + texts.begin()->second));
  }
  return std::max(std::round(made.requests_per_s / 2), 1.0);
}

void Search(const Settings& settings, Load* load, const Begin& begin, Result* result) {
  const auto measure = [&](double rate_per_s) {
    const double enough_s = std::min(kMinStepRequests / rate_per_s, kLongestStepS);
    Step step;
    step.duration_s = std::max(settings.duration_s, enough_s);
    step.warm_up_s = settings.warm_up_s;
    step.rate_per_s = rate_per_s;
    step.max_in_flight = settings.max_in_flight;
    step.number = static_cast<int>(result->steps.size()) + 1;
    char what[64];
    std::snprintf(what, sizeof what, "step %d: %.0f/s", step.number, rate_per_s);
    Figures made = load->Measure(step, begin(what, step.duration_s));
    const Verdict verdict = VerdictOf(made, settings.p99_ms);
    result->steps.push_back({verdict, std::move(made)});
    return verdict;
  };
  const double first_per_s =
      settings.first_per_s > 0 ? settings.first_per_s : Suggestion(settings, load, begin);
  result->found = FindRate(measure, first_per_s, settings.precision);
  for (const Result::Tried& tried : result->steps) {
    const bool is_at_rate = result->found->rate_per_s == tried.figures.asked_per_s;
    if (is_at_rate && tried.verdict == Verdict::kOk) result->measurement = tried.figures;
  }
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

Result Run(const Settings& settings, const Begin& begin) {
  const ModelMetadata metadata = MetadataFor(settings);
  if (settings.shape.payload_bytes == 0) CheckShape(settings.shape, metadata);
  Result result;
  result.settings = settings;
  result.server = Served(metadata);
  result.started_at = Now();
  result.machine = Machine();
  Load load(settings, metadata);
  result.num_distinct = load.num_distinct();
  if (settings.mode == Mode::kFindRate) {
    Search(settings, &load, begin, &result);
  } else {
    result.measurement = MeasureOnce(settings, &load, begin);
  }
  return result;
}

Json Result::ToJson() const {
  Json json;
  json["started_at"] = started_at;
  json["settings"] = settings.ToJson();
  json["settings"]["num_distinct"] = num_distinct;
  json["tool"] = Tool();
  json["machine"] = machine;
  json["server"] = server;
  json["measurement"] = measurement ? measurement->ToJson() : Json(nullptr);
  json["server_metrics"] = nullptr;
  if (found) {
    json["search"] = {{"requests_per_s", OrNull(found->rate_per_s)},
                      {"failing_per_s", OrNull(found->failing_per_s)},
                      {"limit", found->limit ? Json(NameOf(*found->limit)) : Json(nullptr)},
                      {"is_settled", found->is_settled}};
    json["steps"] = Json::array();
    for (const Tried& tried : steps) {
      Json step{{"verdict", NameOf(tried.verdict)}};
      step.update(tried.figures.ToJson());
      json["steps"].push_back(std::move(step));
    }
  }
  return json;
}

std::vector<std::string> Result::Warnings() const {
  if (!measurement) return {};
  std::vector<std::string> warnings = measurement->warnings;
  // A rate that a search found holds although the client was late.
  if (!found && !measurement->is_valid) {
    warnings.insert(warnings.begin(), measurement->late_text());
  }
  return warnings;
}

std::vector<std::string> Result::Missed() const {
  char text[160];
  if (!measurement) {
    std::snprintf(text, sizeof text, "no rate was answered with a p99 of at most %g ms",
                  settings.p99_ms);
    return {text};
  }
  std::vector<std::string> missed;
  if (!measurement->is_valid && !found) {
    missed.push_back("the measurement is not valid: too many requests were sent late");
  }
  const double rate_per_s = found ? found->rate_per_s.value_or(0) : measurement->requests_per_s;
  if (settings.expect_per_s > 0 && rate_per_s < settings.expect_per_s) {
    std::snprintf(text, sizeof text, "rate: got %.1f/s, expected at least %g/s", rate_per_s,
                  settings.expect_per_s);
    missed.emplace_back(text);
  }
  const double p99_ms = measurement->p99_ms.value_or(HUGE_VAL);
  if (settings.expect_p99_ms > 0 && p99_ms > settings.expect_p99_ms) {
    std::snprintf(text, sizeof text, "p99: got %.3f ms, expected at most %g ms", p99_ms,
                  settings.expect_p99_ms);
    missed.emplace_back(text);
  }
  return missed;
}

// Failed requests of a search are what it looks for; those of any other run are failures.
int Result::ExitCode() const {
  const bool has_failed =
      !found && measurement &&
      (measurement->measured.num_failed() > 0 || measurement->measured.num_answered() == 0);
  if (has_failed) return 1;
  return Missed().empty() ? 0 : 3;
}

}  // namespace recsys::bench
