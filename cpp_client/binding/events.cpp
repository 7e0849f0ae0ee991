#include "binding/events.h"

#include <pybind11/stl.h>

#include "binding/values.h"

namespace recsys {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

py::object DictOf(const BatchTimes& times) {
  return py::dict("taken_s"_a = times.taken_s, "collated_s"_a = times.collated_s,
                  "executed_s"_a = times.executed_s, "responded_s"_a = times.responded_s,
                  "num_requests"_a = times.num_requests, "num_rows"_a = times.num_rows);
}

struct ToTuple {
  py::tuple operator()(const CallEvent& event) const {
    py::dict metadata;
    for (const auto& [key, value] : event.metadata) {
      // The first value of a key is used, as in the engine.
      const py::str name = Text(key);
      if (!metadata.contains(name)) metadata[name] = Text(value);
    }
    return py::make_tuple("call", event.id, Text(event.method), py::bytes(event.message),
                          event.deadline_s, metadata, Text(event.peer), event.is_last);
  }

  py::tuple operator()(const AnswerEvent& event) const {
    return py::make_tuple("answer", event.ticket, static_cast<int>(event.status.code),
                          Text(event.status.text), event.status.retry_after_ms,
                          py::bytes(event.message));
  }

  py::tuple operator()(const EndedEvent& event) const {
    py::dict fields(
        "trace_parent"_a = Text(event.trace_parent), "protocol"_a = Text(event.protocol),
        "model"_a = Text(event.model), "version"_a = Text(event.version),
        "request_id"_a = Text(event.request_id), "outcome"_a = Text(event.outcome),
        "code"_a = Text(event.code), "reason"_a = Text(event.reason), "num_rows"_a = event.num_rows,
        "num_ids"_a = event.num_ids, "started_s"_a = event.started_s, "ended_s"_a = event.ended_s,
        "enqueued_s"_a = event.enqueued_s, "is_logged"_a = event.is_logged,
        "is_traced"_a = event.is_traced, "num_left_out"_a = event.num_left_out,
        "times"_a = event.times ? DictOf(*event.times) : py::object(py::none()));
    return py::make_tuple("ended", fields);
  }

  py::tuple operator()(const CapturedEvent& event) const {
    return py::make_tuple("captured", event.time_s, Text(event.model), Text(event.version),
                          py::bytes(event.message));
  }

  py::tuple operator()(const AnsweredEvent& event) const {
    const VersionShape& shape = event.block->shape();
    return py::make_tuple("answered", Text(shape.model), Text(shape.version), event.block);
  }

  py::tuple operator()(const ShadowEvent& event) const {
    return py::make_tuple("shadow", Text(event.model), Text(event.version), Text(event.shadow),
                          Text(event.request_id), event.num_rows, Raw(event.expected),
                          Raw(event.got));
  }

  py::tuple operator()(const ConnectionEvent& event) const {
    return py::make_tuple("connection", event.file->Take(), py::bytes(event.received));
  }

  py::tuple operator()(const LogEvent& event) const {
    return py::make_tuple("log", NameOf(event.level), Text(event.logger), Text(event.text));
  }
};

}  // namespace

py::tuple TupleOf(const Event& event) { return std::visit(ToTuple(), event); }

}  // namespace recsys
