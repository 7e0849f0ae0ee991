#include "server/observe/metrics_page.h"

#include <cmath>
#include <functional>
#include <string_view>

#include "base/text.h"
#include "server/observe/release.h"

namespace recsys {
namespace {

constexpr const char* kStages[] = {"queue", "collate", "execute", "respond"};
constexpr const char* kShadowResults[] = {"same", "different", "failed", "dropped"};
constexpr const char* kCaptureResults[] = {"written", "dropped", "failed"};

/// Go writes numbers of more than six digits with an exponent; Prometheus' clients do so too.
std::string GoNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "+Inf";
  std::string text = ReprFloat(value);
  const std::size_t dot = text.find('.');
  if (value <= 0 || dot == text.npos || dot <= 6) return text;
  std::string mantissa = text.substr(0, 1) + '.' + text.substr(1, dot - 1) + text.substr(dot + 1);
  mantissa.erase(mantissa.find_last_not_of("0.") + 1);
  const std::string exponent = std::to_string(dot - 1);
  return mantissa + "e+" + (exponent.size() < 2 ? "0" : "") + exponent;
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      escaped += '\\';
      escaped += c;
    } else if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

/// Labels as a sample's line has them, in the order of their names.
std::string Labels(std::initializer_list<std::pair<std::string_view, std::string_view>> labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text.append(text.empty() ? "" : ",").append(name).append("=\"");
    text.append(Escaped(value)).append("\"");
  }
  return text;
}

std::string LabelsOf(const Metrics::Snapshot& model) {
  return Labels({{"model", model.model}, {"version", model.version}});
}

class Page {
 public:
  explicit Page(bool is_open_metrics) : is_open_metrics_(is_open_metrics) {}

  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    suffix_ = type == "counter" ? "_total" : "";
    const std::string shown = name_ + (is_open_metrics_ ? "" : suffix_);
    text_.append("# HELP ").append(shown).append(" ").append(help).append("\n");
    text_.append("# TYPE ").append(shown).append(" ").append(type).append("\n");
  }

  void Add(std::string_view labels, double value) { Line(suffix_, labels, value); }
  void Add(std::string_view labels, std::int64_t value) {
    Line(suffix_, labels, static_cast<double>(value));
  }

  void Add(const std::string& labels, const Histogram& histogram) {
    std::int64_t count = 0;
    const HistogramBounds& bounds = histogram.bounds();
    for (std::size_t i = 0; i <= bounds.size; ++i) {
      count += histogram.in_bucket(i);
      const std::string bound = i < bounds.size ? ReprFloat(bounds.values[i]) : "+Inf";
      Line("_bucket", "le=\"" + bound + "\"," + labels, static_cast<double>(count));
    }
    Line("_count", labels, static_cast<double>(count));
    Line("_sum", labels, histogram.sum());
  }

  std::string Finish() {
    if (is_open_metrics_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  void Line(std::string_view suffix, std::string_view labels, double value) {
    text_.append(name_).append(suffix);
    if (!labels.empty()) text_.append("{").append(labels).append("}");
    text_.append(" ").append(GoNumber(value)).append("\n");
  }

  const bool is_open_metrics_;
  std::string text_;
  std::string name_;
  std::string suffix_;
};

using Models = std::vector<Metrics::Snapshot>;

/// One family with one series for each model.
template <typename Read>
void AddFamily(Page& page, std::array<const char*, 3> name_type_help, const Models& models,
               Read read) {
  page.Begin(name_type_help[0], name_type_help[1], name_type_help[2]);
  for (const Metrics::Snapshot& model : models) page.Add(LabelsOf(model), read(model));
}

/// The same of models that are described.
template <typename Read>
void AddDescribed(Page& page, std::array<const char*, 3> name_type_help, const Models& models,
                  Read read) {
  page.Begin(name_type_help[0], name_type_help[1], name_type_help[2]);
  for (const Metrics::Snapshot& model : models) {
    if (model.description) page.Add(LabelsOf(model), read(*model.description));
  }
}

void AddOutcomes(Page& page, std::string_view model, std::string_view version,
                 const std::array<std::int64_t, kNumOutcomes>& outcomes) {
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    page.Add(Labels({{"model", model}, {"outcome", kOutcomes[i]}, {"version", version}}),
             outcomes[i]);
  }
}

void AddRequests(Page& page, const PageNumbers& numbers) {
  page.Begin("recsys_requests", "counter", "Predict requests that have ended, by outcome");
  AddOutcomes(page, "", "", numbers.unrouted);
  for (const Metrics::Snapshot& model : numbers.models) {
    AddOutcomes(page, model.model, model.version, model.outcomes);
  }
  using Of = const Metrics::Snapshot&;
  AddFamily(page, {"recsys_requests_accepted", "counter", "Predict requests that joined the queue"},
            numbers.models, [](Of model) { return model.accepted; });
  AddFamily(
      page,
      {"recsys_request_seconds", "histogram", "Time of answered requests, from arrival to answer"},
      numbers.models, [](Of model) { return model.request; });
}

void AddBatches(Page& page, const Models& models) {
  page.Begin("recsys_stage_seconds", "histogram",
             "Time by stage: queue per request; collate, execute and respond per batch");
  for (const Metrics::Snapshot& model : models) {
    for (std::size_t i = 0; i < model.stages.size(); ++i) {
      page.Add(Labels({{"model", model.model}, {"stage", kStages[i]}, {"version", model.version}}),
               model.stages[i]);
    }
  }
  using Of = const Metrics::Snapshot&;
  AddFamily(page, {"recsys_batch_requests", "histogram", "Requests of each batch"}, models,
            [](Of model) { return model.batch_requests; });
  AddFamily(page, {"recsys_batch_rows", "histogram", "Rows of each batch"}, models,
            [](Of model) { return model.batch_rows; });
  AddFamily(page, {"recsys_batch_ids", "histogram", "IDs of each batch"}, models,
            [](Of model) { return model.batch_ids; });
}

void AddQueues(Page& page, const Models& models) {
  using Of = const Metrics::Snapshot&;
  using About = const HostedDescription&;
  AddFamily(page, {"recsys_pending_rows", "gauge", "Rows that wait in the queue"}, models,
            [](Of model) { return model.pending_rows; });
  AddDescribed(page, {"recsys_pending_limit_rows", "gauge", "Rows that may wait; more are refused"},
               models, [](About about) { return about.limits.max_queue_rows; });
  AddFamily(page, {"recsys_pending_ids", "gauge", "IDs that wait in the queue"}, models,
            [](Of model) { return model.pending_ids; });
  AddDescribed(page, {"recsys_pending_limit_ids", "gauge", "IDs that may wait; more are refused"},
               models, [](About about) { return about.limits.max_queue_ids; });
  AddFamily(page, {"recsys_pending_bytes", "gauge", "Bytes of requests that wait in the queue"},
            models, [](Of model) { return model.pending_bytes; });
  AddDescribed(
      page,
      {"recsys_pending_limit_bytes", "gauge", "Bytes of requests that may wait; more are refused"},
      models, [](About about) { return about.limits.max_queue_bytes; });
  AddDescribed(page, {"recsys_executors", "gauge", "Threads that run batches"}, models,
               [](About about) { return about.num_executors; });
}

void AddTables(Page& page, const Models& models) {
  using Of = const Metrics::Snapshot&;
  page.Begin("recsys_table_bytes", "gauge", "Bytes of each table's rows");
  for (Of model : models) {
    for (const auto& [table, num_bytes] : model.table_bytes) {
      page.Add(Labels({{"model", model.model}, {"table", table}, {"version", model.version}}),
               num_bytes);
    }
  }
  AddFamily(page, {"recsys_deltas_applied", "counter", "Table deltas that were applied"}, models,
            [](Of model) { return model.deltas_applied; });
  AddFamily(page, {"recsys_deltas_failed", "counter", "Table deltas that were refused"}, models,
            [](Of model) { return model.deltas_failed; });
  page.Begin("recsys_shadow", "counter",
             "Answers of a shadow version, compared with those that clients got");
  for (Of model : models) {
    for (std::size_t i = 0; i < model.shadow.size(); ++i) {
      page.Add(
          Labels(
              {{"model", model.model}, {"result", kShadowResults[i]}, {"version", model.version}}),
          model.shadow[i]);
    }
  }
}

void AddModels(Page& page, const PageNumbers& numbers) {
  page.Begin("recsys_model_info", "gauge", "1 for each loaded version");
  for (const Metrics::Snapshot& model : numbers.models) {
    if (!model.description) continue;
    page.Add(Labels({{"digest", model.description->digest},
                     {"model", model.model},
                     {"target", model.description->target},
                     {"version", model.version}}),
             1.0);
  }
  page.Begin("recsys_model_state", "gauge",
             "1 for the state that a version is in, 0 for the others");
  for (const PageNumbers::State& of : numbers.states) {
    for (std::size_t i = 0; i < std::size(kModelStates); ++i) {
      page.Add(Labels({{"model", of.model}, {"state", kModelStates[i]}, {"version", of.version}}),
               i == of.state ? 1.0 : 0.0);
    }
  }
}

std::int64_t Watched(const PageNumbers& numbers, const char* what, const char* result) {
  const auto counts = numbers.watched.find(what);
  if (counts == numbers.watched.end()) return 0;
  const auto count = counts->second.find(result);
  return count == counts->second.end() ? 0 : count->second;
}

void AddServer(Page& page, const PageNumbers& numbers) {
  page.Begin("recsys_captured_requests", "counter", "Sampled requests, by what became of them");
  for (const char* result : kCaptureResults) {
    page.Add(Labels({{"result", result}}), Watched(numbers, "capture", result));
  }
  page.Begin("recsys_log_records_dropped", "counter",
             "Log records that were lost because writing was too slow");
  page.Add("", Watched(numbers, "log", "dropped"));
  page.Begin("recsys_traces_dropped", "counter",
             "Traces of requests that were lost because the collector was too slow, or away");
  page.Add("", Watched(numbers, "trace", "dropped"));
  page.Begin("recsys_server_info", "gauge", "1, with the server's version");
  page.Add(Labels({{"version", kRelease}}), 1.0);
}

void AddProcess(Page& page, const ProcessNumbers& process) {
  const auto add = [&page](std::array<const char*, 3> name_type_help, double value) {
    page.Begin(name_type_help[0], name_type_help[1], name_type_help[2]);
    page.Add("", value);
  };
  if (const auto& stat = process.stat) {
    add({"process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."},
        stat->virtual_memory_bytes);
    add({"process_resident_memory_bytes", "gauge", "Resident memory size in bytes."},
        stat->resident_memory_bytes);
    add({"process_start_time_seconds", "gauge",
         "Start time of the process since unix epoch in seconds."},
        stat->start_time_s);
    add({"process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds."},
        stat->cpu_s);
  }
  if (const auto& files = process.files) {
    add({"process_open_fds", "gauge", "Number of open file descriptors."}, files->num_open);
    add({"process_max_fds", "gauge", "Maximum number of open file descriptors."}, files->max_open);
  }
}

}  // namespace

std::string MakeMetricsPage(const PageNumbers& numbers, bool is_open_metrics) {
  Page page(is_open_metrics);
  AddRequests(page, numbers);
  AddBatches(page, numbers.models);
  AddQueues(page, numbers.models);
  AddTables(page, numbers.models);
  AddModels(page, numbers);
  AddServer(page, numbers);
  AddProcess(page, numbers.process);
  return page.Finish();
}

}  // namespace recsys
