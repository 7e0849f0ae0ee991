#include "binding/answered.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "binding/values.h"
#include "recsys/error.h"
#include "wire/predict/answered_columns.h"
#include "wire/predict/predict_request.h"

namespace recsys {
namespace {

namespace py = pybind11;

using Blocks = std::vector<std::shared_ptr<AnsweredBlock>>;

/// Returns the request without model, version and request ID.
std::string InputsOf(const std::string& message) {
  PredictFields fields;
  RawRequest raw;
  if (!ReadPredictRequest(message, message.size(), &fields, &raw)) {
    throw Error(ErrorKind::kRequest, "the bytes are not a PredictRequest");
  }
  return WritePredictRequest(raw);
}

py::list RecordsOf(const AnsweredBlock& block) {
  py::list records;
  for (const AnsweredEvent& event : block.events) {
    py::list outputs;
    for (const std::string& values : event.outputs) outputs.append(py::bytes(values));
    records.append(py::make_tuple(event.time_s, event.protocol, Text(event.model),
                                  Text(event.version), Text(event.request_id), event.num_rows,
                                  event.draw, py::bytes(InputsOf(event.message)), outputs));
  }
  return records;
}

std::shared_ptr<AnsweredBlock> Below(const AnsweredBlock& block, double share) {
  auto chosen = std::make_shared<AnsweredBlock>();
  std::copy_if(block.events.begin(), block.events.end(), std::back_inserter(chosen->events),
               [share](const AnsweredEvent& event) { return event.draw < share; });
  return chosen;
}

std::int64_t NumBytes(const AnsweredBlock& block) {
  std::size_t sum = 0;
  for (const AnsweredEvent& event : block.events) {
    sum += sizeof(event) + event.message.size() + event.request_id.size();
    for (const std::string& values : event.outputs) sum += values.size();
  }
  return static_cast<std::int64_t>(sum);
}

template <typename T>
void AppendNumber(T number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void AppendText(std::string_view text, std::string* sizes, std::string* texts) {
  AppendNumber(static_cast<std::int32_t>(text.size()), sizes);
  texts->append(text);
}

/// The columns of the requests themselves; RequestColumns in serve/engine/answered_columns.py.
struct RequestColumns {
  std::string times, num_rows, id_sizes, ids, protocol_sizes, protocols;
  std::vector<std::string> output_sizes, outputs;

  void Add(const AnsweredEvent& event) {
    AppendNumber(event.time_s, &times);
    AppendNumber(event.num_rows, &num_rows);
    AppendText(event.request_id, &id_sizes, &ids);
    AppendText(event.protocol, &protocol_sizes, &protocols);
    outputs.resize(std::max(outputs.size(), event.outputs.size()));
    output_sizes.resize(outputs.size());
    for (std::size_t i = 0; i < event.outputs.size(); ++i) {
      AppendNumber(static_cast<std::int64_t>(event.outputs[i].size()), &output_sizes[i]);
      outputs[i].append(event.outputs[i]);
    }
  }
};

py::tuple Columns(const Blocks& blocks,
                  const std::vector<std::pair<std::string, std::int64_t>>& dense,
                  const std::vector<std::string>& sparse) {
  std::vector<DenseColumn> numbers;
  for (const auto& [name, width] : dense) numbers.push_back({name, width});
  std::vector<SparseColumn> bags;
  for (const std::string& name : sparse) bags.push_back({name});
  RequestColumns requests;
  {
    const py::gil_scoped_release released;
    std::vector<std::string_view> messages;
    for (const auto& block : blocks) {
      for (const AnsweredEvent& event : block->events) {
        requests.Add(event);
        messages.emplace_back(event.message);
      }
    }
    AppendAnswered(messages, &numbers, &bags);
  }
  py::list dense_columns, sparse_columns;
  for (const DenseColumn& one : numbers) {
    dense_columns.append(py::make_tuple(py::bytes(one.has), py::bytes(one.values)));
  }
  for (const SparseColumn& one : bags) {
    sparse_columns.append(py::make_tuple(py::bytes(one.has_ids), py::bytes(one.lengths),
                                         py::bytes(one.values), py::bytes(one.weights),
                                         py::bytes(one.has_texts), py::bytes(one.text_lengths),
                                         py::bytes(one.sizes), py::bytes(one.texts)));
  }
  const py::tuple of_requests = py::make_tuple(
      py::bytes(requests.times), py::bytes(requests.num_rows), py::bytes(requests.id_sizes),
      py::bytes(requests.ids), py::bytes(requests.protocol_sizes), py::bytes(requests.protocols),
      Raw(requests.output_sizes), Raw(requests.outputs));
  return py::make_tuple(of_requests, dense_columns, sparse_columns);
}

using Record = std::tuple<double, std::string, std::string, std::string, std::string, std::int64_t,
                          double, py::bytes, std::vector<py::bytes>>;

std::shared_ptr<AnsweredBlock> BlockOf(const std::vector<Record>& records) {
  auto block = std::make_shared<AnsweredBlock>();
  for (const auto& [time_s, protocol, model, version, id, num_rows, draw, message, outputs] :
       records) {
    AnsweredEvent event{time_s, protocol, model, version, id, num_rows, draw, message, {}};
    for (const py::bytes& values : outputs) event.outputs.emplace_back(values);
    block->events.push_back(std::move(event));
  }
  return block;
}

}  // namespace

void AnsweredBlocks::Add(AnsweredEvent event) {
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [&event](const AnsweredBlock& block) {
        const AnsweredEvent& first = block.events.front();
        return first.version == event.version && first.model == event.model;
      });
  AnsweredBlock& block = found == blocks_.end() ? blocks_.emplace_back() : *found;
  block.events.push_back(std::move(event));
}

void AnsweredBlocks::Finish() {
  for (AnsweredBlock& block : blocks_) {
    const py::str model = Text(block.events.front().model);
    const py::str version = Text(block.events.front().version);
    list_.append(py::make_tuple("answered", model, version,
                                std::make_shared<AnsweredBlock>(std::move(block))));
  }
  blocks_.clear();
}

void DefineAnswered(py::module_& module) {
  py::class_<AnsweredBlock, std::shared_ptr<AnsweredBlock>>(module, "AnsweredBlock")
      .def(py::init(&BlockOf), py::arg("records"))
      .def("__len__", [](const AnsweredBlock& self) { return self.events.size(); })
      .def("num_bytes", &NumBytes)
      .def("below", &Below, py::arg("share"))
      .def("records", &RecordsOf);
  module.def("answered_columns", &Columns, py::arg("blocks"), py::arg("dense"), py::arg("sparse"));
}

}  // namespace recsys
