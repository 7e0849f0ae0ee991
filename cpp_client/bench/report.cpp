#include "bench/report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace recsys::bench {
namespace {

using Row = std::vector<std::string>;

__attribute__((format(printf, 1, 2))) std::string Text(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

/// 1234567.8 as 1,234,567.8.
std::string WithCommas(double value, int decimals) {
  std::string text = Text("%.*f", decimals, value);
  std::size_t at = std::min(text.find('.'), text.size());
  while (at > 3 && text[at - 4] != '-') {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

/// Four digits that count, or a dash.
std::string Number(const Json& value) {
  if (value.is_null()) return "-";
  const double number = value.get<double>();
  return std::abs(number) >= 1000 ? WithCommas(number, 0) : Text("%.4g", number);
}

std::string Table(const std::string& title, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = "\n" + title + "\n";
  for (const Row& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      // The first and the last column are names and texts.
      const bool is_left = i == 0 || i + 1 == row.size();
      line += (i == 0 ? "" : "  ") + (is_left ? row[i] + pad : pad + row[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Row LatencyRow(const std::string& name, const std::string& count, const Latencies& latencies) {
  Row row{name, count};
  const Json figures = latencies.FiguresMs();
  for (const Json& value : figures) row.push_back(Number(value));
  return row;
}

std::string LatencyTable(const Figures& made) {
  const Measured& measured = made.measured;
  const bool is_open = measured.lags.count() > 0;
  std::vector<Row> rows{
      {"", "answered", "p50", "p90", "p95", "p99", "p99.9", "max", "mean"},
      LatencyRow(is_open ? "since due" : "latency",
                 WithCommas(static_cast<double>(measured.num_answered()), 0), measured.latencies)};
  if (is_open) {
    rows.push_back(LatencyRow("since sent", "", measured.services));
    rows.push_back(LatencyRow("sent late by", "", measured.lags));
  }
  for (std::size_t i = 0; i < made.kind_names.size(); ++i) {
    const Latencies& latencies = measured.kinds[i].latencies;
    rows.push_back(LatencyRow(made.kind_names[i],
                              WithCommas(static_cast<double>(latencies.count()), 0), latencies));
  }
  return Table("latency in ms", rows);
}

std::string StepsTable(const Result& result) {
  std::vector<const Result::Tried*> steps;
  for (const Result::Tried& tried : result.steps) steps.push_back(&tried);
  std::stable_sort(steps.begin(), steps.end(), [](const auto* a, const auto* b) {
    return a->figures.asked_per_s < b->figures.asked_per_s;
  });
  std::vector<Row> rows{{"asked/s", "answered/s", "p50 ms", "p99 ms", "failed", "sent late", ""}};
  for (const Result::Tried* tried : steps) {
    const Figures& made = tried->figures;
    const Json latency = made.measured.latencies.FiguresMs();
    rows.push_back({Number(made.asked_per_s), Number(made.requests_per_s), Number(latency["p50"]),
                    Number(latency["p99"]),
                    WithCommas(static_cast<double>(made.measured.num_failed()), 0),
                    Text("%.1f%%", made.late_share * 100), TextOf(tried->verdict)});
  }
  return Table("steps", rows);
}

std::string FailuresTable(const Measured& measured) {
  std::vector<Row> rows{{"code", "requests", "the first one said"}};
  for (const auto& [code, count] : measured.errors) {
    const auto text = measured.texts.find(code);
    rows.push_back({code, WithCommas(static_cast<double>(count), 0),
                    text == measured.texts.end() ? "" : text->second});
  }
  return Table("failed requests", rows);
}

std::string SearchHeadline(const Result& result) {
  const Found& found = *result.found;
  const std::string bound = Text("p99 of at most %g ms", result.settings.p99_ms);
  if (!found.rate_per_s) return "no rate was answered with a " + bound;
  const std::string rate = WithCommas(*found.rate_per_s, 1) + " requests/s with a " + bound;
  if (!found.limit) return "at least " + rate + ": no limit was found";
  return rate + (*found.limit == Verdict::kLate ? " (the client's limit, not the server's)" : "") +
         (found.is_settled ? "" : ", not settled");
}

std::string Headline(const Result& result) {
  if (result.found) return SearchHeadline(result);
  const Figures& made = *result.measurement;
  if (made.measured.num_answered() == 0) return "nothing was answered";
  const Json latency = made.measured.latencies.FiguresMs();
  return WithCommas(made.requests_per_s, 1) + " requests/s, " + WithCommas(made.rows_per_s, 1) +
         " rows/s; p50 " + Number(latency["p50"]) + " ms, p99 " + Number(latency["p99"]) + " ms" +
         (made.is_valid ? "" : "; NOT VALID, see the warning");
}

std::string Counted(int count, const char* name) {
  return std::to_string(count) + " " + name + (count == 1 ? "" : "s");
}

std::string LoopText(const Settings& settings) {
  const std::string where = Counted(settings.num_connections, "connection") + ", " +
                            Counted(settings.num_threads, "thread");
  switch (settings.mode) {
    case Mode::kFindRate:
      return Text("open loops of at least %g s; ", settings.duration_s) + where;
    case Mode::kOpen:
      return Text("open loop, %g/s for %.4g s; ", settings.rate_per_s, settings.duration_s) + where;
    default:
      return Text("closed loop, %d in flight for %.4g s; ", settings.num_in_flight,
                  settings.duration_s) +
             where;
  }
}

std::string About(const Result& result) {
  const Shape& shape = result.settings.shape;
  std::string text;
  if (shape.payload_bytes > 0) {
    text = "requests of " + std::to_string(shape.payload_bytes) + " meaningless bytes\n";
  } else {
    text = "model " + result.server["model"].get<std::string>() + ", version " +
           result.server["version"].get<std::string>() + ", target " +
           result.server["target"].get<std::string>() + "; recsys; " +
           (shape.ranking ? "requests of one context and " + shape.rows.text() + " candidates"
                          : "rows per request: " + shape.rows.text()) +
           "\n";
  }
  text += LoopText(result.settings) + "\n";
  if (!result.measurement) return text;
  const Figures& made = *result.measurement;
  text += Text("the client used %.0f%% of a core", made.generator_cpu_shares[0] * 100);
  if (made.measured.lags.count() > 0) {
    text += Text("; %.2f%% sent more than %.3g ms late", made.late_share * 100, made.late_ms);
  }
  return text + "\n";
}

}  // namespace

std::string Report(const Result& result) {
  std::string text = Headline(result) + "\n" + About(result);
  if (result.found) text += StepsTable(result);
  if (!result.measurement) return text;
  text += LatencyTable(*result.measurement);
  const Measured& measured = result.measurement->measured;
  if (!measured.errors.empty()) text += FailuresTable(measured);
  for (const std::string& warning : result.Warnings()) text += "warning: " + warning + "\n";
  return text;
}

Display::Display(bool says_steps)
    : is_terminal_(isatty(STDERR_FILENO) == 1), says_steps_(says_steps) {}

Display::~Display() {
  if (is_terminal_) std::fputs("\r\033[K", stderr);
}

Progress Display::Start(const std::string& what, double length_s) {
  if (!is_terminal_) {
    if (says_steps_) std::fprintf(stderr, "recsys-cpp-bench: %s, %.0f s\n", what.c_str(), length_s);
    return [](double, std::int64_t, std::int64_t) {};
  }
  return [what, length_s](double elapsed_s, std::int64_t num_answered, std::int64_t num_failed) {
    const std::string failed =
        num_failed > 0 ? ", " + WithCommas(static_cast<double>(num_failed), 0) + " failed" : "";
    std::fprintf(stderr, "\r\033[K%s  %3.0f%%  %s answered%s", what.c_str(),
                 std::min(elapsed_s / length_s, 1.0) * 100,
                 WithCommas(static_cast<double>(num_answered), 0).c_str(), failed.c_str());
    std::fflush(stderr);
  };
}

}  // namespace recsys::bench
