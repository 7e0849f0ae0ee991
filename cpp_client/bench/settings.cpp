#include "bench/settings.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "bench/options.h"
#include "client/settings.h"

namespace recsys::bench {
namespace {

constexpr int kInFlight = 64;
constexpr int kConnections = 4;

constexpr char kUsage[] =
    "usage: recsys-cpp-bench ADDRESS [--in-flight N | --rate R | --find-rate] [option ...]\n\n"
    "Drive load at a server; say what it answers, how fast, and whether the numbers can be "
    "believed. The same as\n"
    "recsys-bench, for servers that are faster than Python can ask; options and results have the "
    "same names.\n\n"
    "  ADDRESS                     host:port of a server\n";

constexpr char kEpilogue[] = R"(
example:
  recsys-cpp-bench 127.0.0.1:8500 --in-flight 256                   as fast as answers come, 256 at a time
  recsys-cpp-bench 127.0.0.1:8500 --rate 20000 --json               20 000 requests a second, answers or not
  recsys-cpp-bench 127.0.0.1:8500 --find-rate --p99-ms 5            the highest rate with a p99 of 5 ms
  recsys-cpp-bench 127.0.0.1:8500 --rate 2000 --rows 1:0.9,50:0.1 --ids-per-bag genres=0-20 --zipf 1.05
  recsys-cpp-bench 127.0.0.1:8500 --rate 500 --candidates 200       ranking requests

A MIX is a whole number (8), a range (1-20), or several with weights (1:0.9,50:0.1).

exit codes: 0 every request was answered (of a search: a rate was found), 1 some failed or there is no server,
2 bad usage, 3 an expectation was missed, or the numbers are not valid because the client sent too late
)";

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

/// What the options leave behind, before it is known how they go together.
struct Given {
  Settings settings;
  bool help = false;
  bool find_rate = false;
  bool has_rows = false;
  bool tls = false;
  ClientTls files;
};

OptionGroup LoadOptions(Given* given) {
  Settings* s = &given->settings;
  return {"load",
          {{{"--in-flight", "--concurrency"},
            "N",
            "closed loop: requests at a time (default: 64)",
            [s](const std::string& text) { s->num_in_flight = WholeNumber(text, 1); }},
           {{"--rate"},
            "R",
            "open loop: requests per second, as a Poisson process",
            [s](const std::string& text) { s->rate_per_s = PositiveNumber(text); }},
           {{"--find-rate", "--ramp"},
            "",
            "search for the highest rate of an open loop within --p99-ms",
            [given](const std::string&) { given->find_rate = true; }},
           {{"--p99-ms"},
            "MS",
            "the bound of --find-rate",
            [s](const std::string& text) { s->p99_ms = PositiveNumber(text); }},
           {{"--start-rate"},
            "R",
            "where --find-rate begins (default: a probe says)",
            [s](const std::string& text) { s->first_per_s = PositiveNumber(text); }},
           {{"--precision"},
            "P",
            "of --find-rate, as a share of the rate (default: 0.05)",
            [s](const std::string& text) { s->precision = NumberBetween(text, 0.001, 1); }},
           {{"--max-in-flight"},
            "N",
            "of an open loop; what is due beyond that fails unsent (default: 10000)",
            [s](const std::string& text) { s->max_in_flight = WholeNumber(text, 1); }},
           {{"--duration-s", "--duration"},
            "S",
            "measured; of a search, each step (default: 10)",
            [s](const std::string& text) { s->duration_s = PositiveNumber(text); }},
           {{"--warm-up-s", "--warm-up"},
            "S",
            "not measured (default: 1)",
            [s](const std::string& text) { s->warm_up_s = NumberBetween(text, 0, 1e6); }},
           {{"--threads", "--processes"},
            "N",
            "that send; of an open loop each has another one that receives (default: 1)",
            [s](const std::string& text) { s->num_threads = WholeNumber(text, 1); }},
           {{"--seed"}, "N", "of all that is random (default: 0)", [s](const std::string& text) {
              s->seed = static_cast<std::uint32_t>(WholeNumber(text, 0));
            }}}};
}

/// `MIX` for all inputs, `NAME=MIX` for one.
void TakeBags(const std::string& text, Shape* shape) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos) {
    shape->ids_per_bag = ParseMix(text);
  } else {
    shape->ids_per_bag_of[text.substr(0, equals)] = ParseMix(text.substr(equals + 1));
  }
}

OptionGroup RequestOptions(Given* given) {
  Shape* shape = &given->settings.shape;
  return {"requests",
          {{{"--rows"},
            "MIX",
            "of each request (default: 1)",
            [given, shape](const std::string& text) {
              if (shape->ranking) Refuse("got --candidates too, expected one of the two");
              given->has_rows = true;
              shape->rows = ParseMix(text);
            }},
           {{"--candidates", "--ranking"},
            "MIX",
            "ranking requests: rows of each; context inputs are given once",
            [given, shape](const std::string& text) {
              if (given->has_rows) Refuse("got --rows too, expected one of the two");
              shape->ranking = true;
              shape->rows = ParseMix(text);
            }},
           {{"--ids-per-bag"},
            "[NAME=]MIX",
            "of a row in each sparse input, or in one; may be repeated (default: 1)",
            [shape](const std::string& text) { TakeBags(text, shape); }},
           {{"--zipf"},
            "S",
            "the ID of rank k with a probability proportional to k to the power of -S (default: 0)",
            [shape](const std::string& text) { shape->zipf = NumberBetween(text, 0, 99.9); }},
           {{"--distinct"},
            "N",
            "requests that are made, then sent over and over (default: 4096; at most 256 MiB)",
            [shape](const std::string& text) { shape->num_distinct = WholeNumber(text, 1); }},
           {{"--payload-bytes"},
            "N",
            "instead: so many meaningless bytes, for servers that answer anything",
            [shape](const std::string& text) { shape->payload_bytes = WholeNumber(text, 1); }},
           {{"--model"},
            "NAME",
            "default: the one that the server holds",
            [shape](const std::string& text) { shape->model = text; }},
           {{"--version"},
            "V",
            "default: what the server's routing chooses",
            [shape](const std::string& text) { shape->version = text; }}}};
}

OptionGroup ConnectionOptions(Given* given) {
  Settings* s = &given->settings;
  return {"connections",
          {{{"--connections"},
            "N",
            "over all threads (default: 4)",
            [s](const std::string& text) { s->num_connections = WholeNumber(text, 1); }},
           {{"--timeout-s", "--timeout"},
            "S",
            "of each request (default: 30)",
            [s](const std::string& text) { s->timeout_s = PositiveNumber(text); }},
           {{"--describe"},
            "WHERE",
            "who says what the model takes, if ADDRESS does not: host:port of a server,\n"
            "                              or a file that recsys-predict --metadata printed",
            [s](const std::string& text) { s->describe = text; }},
           {{"--tls"},
            "",
            "encrypt; the system knows who signs the server",
            [given](const std::string&) { given->tls = true; }},
           {{"--tls-ca"},
            "PEM",
            "encrypt; who signs the server's certificate",
            [given](const std::string& text) { given->files.ca = text; }},
           {{"--tls-certificate", "--tls-cert"},
            "PEM",
            "the client's own (mTLS)",
            [given](const std::string& text) { given->files.certificate = text; }},
           {{"--tls-key"}, "PEM", "of --tls-certificate", [given](const std::string& text) {
              given->files.key = text;
            }}}};
}

OptionGroup ResultOptions(Given* given) {
  Settings* s = &given->settings;
  return {
      "result",
      {{{"--json"}, "", "print one JSON object", [s](const std::string&) { s->as_json = true; }},
       {{"--expect-p99-ms"},
        "MS",
        "exit with 3 if p99 is above",
        [s](const std::string& text) { s->expect_p99_ms = PositiveNumber(text); }},
       {{"--expect-rate"},
        "R",
        "exit with 3 if fewer are answered per second",
        [s](const std::string& text) { s->expect_per_s = PositiveNumber(text); }},
       {{"--help"}, "", "show this, and exit", [given](const std::string&) {
          given->help = true;
        }}}};
}

std::vector<OptionGroup> Options(Given* given) {
  return {LoadOptions(given), RequestOptions(given), ConnectionOptions(given),
          ResultOptions(given)};
}

void SetMode(const Given& given, Settings* s) {
  if (given.find_rate && s->rate_per_s > 0) {
    Refuse("--find-rate: got --rate too, expected one of --rate and --find-rate");
  }
  if (given.find_rate && s->p99_ms == 0) {
    Refuse("--find-rate: expected a bound, such as --p99-ms 20");
  }
  if (s->p99_ms > 0 && !given.find_rate) {
    Refuse("--p99-ms: expected with --find-rate; --expect-p99-ms checks any other run");
  }
  s->mode = given.find_rate ? Mode::kFindRate : s->rate_per_s > 0 ? Mode::kOpen : Mode::kClosed;
  const bool is_closed = s->mode == Mode::kClosed;
  if (s->num_in_flight > 0 && !is_closed) {
    Refuse("--in-flight: expected only of a closed loop; an open one has --max-in-flight");
  }
  if (is_closed && s->num_in_flight == 0) s->num_in_flight = std::max(kInFlight, s->num_threads);
}

/// Each thread has one at least, and none stays without a request.
void SetConnections(Settings* s) {
  const int most = s->num_in_flight > 0 ? s->num_in_flight : s->max_in_flight;
  if (s->num_connections == 0) {
    s->num_connections = std::max(std::min(kConnections, most), s->num_threads);
  }
  if (s->num_connections < s->num_threads || s->num_connections > most) {
    Refuse("--connections: got " + std::to_string(s->num_connections) + " with " +
           std::to_string(s->num_threads) + " threads and " + std::to_string(most) +
           " requests in flight, expected --threads <= --connections <= requests in flight");
  }
}

const char* NameOf(Mode mode) {
  switch (mode) {
    case Mode::kOpen:
      return "open";
    case Mode::kFindRate:
      return "find-rate";
    default:
      return "closed";
  }
}

Json PositiveOrNull(double value) { return value > 0 ? Json(value) : Json(nullptr); }

}  // namespace

std::optional<Settings> ReadSettings(const std::vector<std::string>& words) {
  Given given;
  const std::vector<std::string> rest = ReadOptions(words, Options(&given));
  if (given.help) return std::nullopt;
  Settings settings = std::move(given.settings);
  if (rest.empty()) Refuse("ADDRESS: got nothing, expected host:port of a server");
  if (rest.size() > 1) Refuse("got " + Repr(rest[1]) + " too, expected one ADDRESS");
  settings.address = rest[0];
  client::CheckAddress(settings.address);
  SetMode(given, &settings);
  SetConnections(&settings);
  if (given.tls || !given.files.ca.empty() || !given.files.certificate.empty() ||
      !given.files.key.empty()) {
    settings.tls = given.files;
    client::ReadTls(*settings.tls);
  }
  return settings;
}

std::string HelpText() {
  Given given;
  return kUsage + DescribeOptions(Options(&given)) + kEpilogue;
}

Json Settings::ToJson() const {
  Json json{{"mode", NameOf(mode)}, {"protocol", "recsys"}, {"encrypted", tls.has_value()}};
  json[shape.ranking ? "candidates" : "rows"] = shape.rows.text();
  json["ids_per_bag"] = shape.ids_per_bag.text();
  for (const auto& [name, mix] : shape.ids_per_bag_of) {
    json["ids_per_bag[" + name + "]"] = mix.text();
  }
  json["zipf"] = shape.zipf;
  json["priorities"] = nullptr;
  json["num_distinct"] = shape.num_distinct;
  if (shape.payload_bytes > 0) json["payload_bytes"] = shape.payload_bytes;
  json["deadlines_ms"] = nullptr;
  json["num_in_flight"] = num_in_flight > 0 ? Json(num_in_flight) : Json(nullptr);
  json["asked_per_s"] = PositiveOrNull(rate_per_s);
  json["p99_bound_ms"] = PositiveOrNull(p99_ms);
  json["num_connections"] = num_connections;
  json["num_processes"] = 1;
  json["num_threads"] = num_threads;
  json["duration_s"] = duration_s;
  json["warm_up_s"] = warm_up_s;
  json["timeout_s"] = timeout_s;
  json["seed"] = seed;
  return json;
}

}  // namespace recsys::bench
