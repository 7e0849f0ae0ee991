// serve/bench/load/_sender: the native sender as a Python module. Settings are passed as JSON text,
// requests as bytes; counts are returned as plain Python data. serve/bench/load/_sender.pyi has the
// types.
#include <absl/synchronization/mutex.h>
#include <grpc/support/log.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "bench/sender.h"

namespace recsys::bench {
namespace {

namespace py = pybind11;
using Json = nlohmann::json;

Target TargetOf(const Json& settings) {
  Target target;
  target.address = settings.at("address");
  target.method = settings.at("method");
  target.num_connections = settings.at("num_connections");
  target.timeout_s = settings.at("timeout_s");
  if (const Json& tls = settings.at("tls"); !tls.is_null()) {
    target.tls.emplace();
    target.tls->ca = tls.at("ca");
    target.tls->certificate = tls.at("certificate");
    target.tls->key = tls.at("key");
  }
  return target;
}

Step StepOf(const Json& settings) {
  Step step;
  step.start_s = settings.at("start_s");
  step.warm_up_s = settings.at("warm_up_s");
  if (const Json& duration_s = settings.at("duration_s"); !duration_s.is_null()) {
    step.duration_s = duration_s;
  }
  step.num_in_flight = settings.at("num_in_flight");
  step.rate_per_s = settings.at("rate_per_s");
  step.max_in_flight = settings.at("max_in_flight");
  step.number = settings.at("number");
  return step;
}

/// `requests`: (bytes, rows, kind, deadline in seconds or 0) each.
Requests RequestsOf(const py::list& requests, std::vector<double> offsets_s, const Json& settings) {
  Requests made;
  made.num_kinds = settings.at("num_kinds");
  made.is_recording = settings.at("is_recording");
  made.offsets_s = std::move(offsets_s);
  for (const py::handle& request : requests) {
    const auto [data, num_rows, kind, deadline_s] =
        request.cast<std::tuple<py::bytes, std::int32_t, std::int32_t, double>>();
    if (kind < 0 || static_cast<std::size_t>(kind) >= std::max<std::size_t>(made.num_kinds, 1)) {
      throw std::invalid_argument("requests: got a kind beyond num_kinds");
    }
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(data.ptr(), &bytes, &size) != 0) throw py::error_already_set();
    // One slice per request: gRPC takes a reference each time it is sent.
    const grpc::Slice slice(bytes, static_cast<std::size_t>(size));
    made.prepared.push_back({grpc::ByteBuffer(&slice, 1), num_rows, kind, deadline_s});
  }
  if (made.is_recording && !made.offsets_s.empty() &&
      made.offsets_s.size() != made.prepared.size()) {
    throw std::invalid_argument("offsets_s: expected one for each request of a recording");
  }
  return made;
}

/// (durations by bucket, sum in ns, maximum in ns).
py::tuple PythonOf(const Latencies& latencies) {
  py::dict counts;
  for (std::size_t bucket = 0; bucket < latencies.counts().size(); ++bucket) {
    const std::int64_t count = latencies.counts()[bucket];
    if (count > 0) counts[py::int_(bucket)] = count;
  }
  return py::make_tuple(counts, latencies.sum_ns(), latencies.max_ns());
}

py::dict PythonOf(const Measured& measured) {
  py::dict errors, intervals, series, result;
  py::list kinds;
  for (const auto& [code, failures] : measured.errors) {
    // A server's error text need not be UTF-8.
    const auto text = py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
        failures.text.data(), static_cast<Py_ssize_t>(failures.text.size()), "replace"));
    errors[py::int_(code)] = py::make_tuple(failures.count, text);
  }
  for (const Measured::Kind& kind : measured.kinds) {
    kinds.append(py::make_tuple(PythonOf(kind.latencies), kind.num_failed));
  }
  for (std::size_t i = 0; i < measured.series.intervals().size(); ++i) {
    const Series::Interval& interval = measured.series.intervals()[i];
    if (interval.latencies.count() + interval.num_failed == 0) continue;
    intervals[py::int_(i)] = py::make_tuple(PythonOf(interval.latencies), interval.num_failed);
  }
  result["latencies"] = PythonOf(measured.latencies);
  result["services"] = PythonOf(measured.services);
  result["lags"] = PythonOf(measured.lags);
  result["errors"] = errors;
  result["kinds"] = kinds;
  result["series"] = py::make_tuple(measured.series.width_s(), intervals);
  result["num_in_time"] = measured.num_in_time;
  result["num_rows"] = measured.num_rows;
  result["cpu_shares"] = measured.cpu_shares;
  result["ended_s"] = measured.ended_s;
  return result;
}

std::unique_ptr<Sender> Open(const std::string& settings_text, const py::list& requests,
                             std::vector<double> offsets_s) {
  const Json settings = Json::parse(settings_text);
  Requests made = RequestsOf(requests, std::move(offsets_s), settings);
  return std::make_unique<Sender>(TargetOf(settings), std::move(made), settings.at("num_lanes"),
                                  settings.at("seed"));
}

}  // namespace

PYBIND11_MODULE(_sender, module) {
  // Debian's gRPC checks for deadlocks whenever it takes a lock, which takes a twentieth of the
  // cost of a request.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // gRPC logs only if the user asks for it.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  using Released = py::call_guard<py::gil_scoped_release>;
  module.attr("GRPC_VERSION") = grpc::Version();
  module.attr("NOT_SENT") = kNotSent;
  py::class_<Sender>(module, "Sender")
      .def(py::init(&Open), py::arg("settings"), py::arg("requests"), py::arg("offsets_s"))
      .def("connect", &Sender::Connect, py::arg("within_s"), Released())
      .def(
          "start",
          [](Sender& self, const std::string& step) { self.Start(StepOf(Json::parse(step))); },
          py::arg("step"), Released())
      .def("wait", &Sender::Wait, py::arg("at_most_s"), Released())
      .def(
          "progress",
          [](const Sender& self) { return py::make_tuple(self.num_answered(), self.num_failed()); })
      .def("take", [](Sender& self) {
        Measured measured;
        {
          const py::gil_scoped_release released;
          measured = self.Take();
        }
        return PythonOf(measured);
      });
}

}  // namespace recsys::bench
