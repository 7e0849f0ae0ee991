#include "binding/answered.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <numeric>

#include "binding/values.h"
#include "engine/answers/answer_block.h"

namespace recsys {
namespace {

namespace py = pybind11;

/// Makes arrays that keep their block alive.
class Arrays {
 public:
  explicit Arrays(const std::shared_ptr<AnswerBlock>& block) : owner_(py::cast(block)) {}

  template <typename Number>
  py::array_t<Number> Of(const Column& column) const {
    const auto size = static_cast<py::ssize_t>(column.size() / sizeof(Number));
    return py::array_t<Number>(size, reinterpret_cast<const Number*>(column.data()), owner_);
  }

 private:
  const py::object owner_;
};

py::tuple RequestsOf(const AnswerBlock& block, const Arrays& arrays) {
  const RequestColumns& columns = block.requests();
  py::list protocols, outputs;
  for (const char* name : columns.protocol_names) protocols.append(Text(name));
  for (std::size_t i = 0; i < columns.outputs.size(); ++i) {
    const bool is_integer = block.shape().signature.outputs[i].type == OutputType::kInt64;
    outputs.append(is_integer ? py::array(arrays.Of<std::int64_t>(columns.outputs[i]))
                              : py::array(arrays.Of<float>(columns.outputs[i])));
  }
  return py::make_tuple(arrays.Of<double>(columns.times), arrays.Of<double>(columns.draws),
                        arrays.Of<std::int64_t>(columns.num_rows),
                        arrays.Of<std::int32_t>(columns.id_offsets),
                        arrays.Of<std::uint8_t>(columns.ids),
                        arrays.Of<std::uint8_t>(columns.protocols), protocols, outputs);
}

/// The numbers from 0 below an end.
py::array_t<std::int32_t> Counted(std::int64_t end) {
  py::array_t<std::int32_t> numbers(static_cast<py::ssize_t>(end));
  std::iota(numbers.mutable_data(), numbers.mutable_data() + end, 0);
  return numbers;
}

py::tuple ColumnsOf(const std::shared_ptr<AnswerBlock>& block) {
  const Arrays arrays(block);
  py::list dense, sparse;
  // Of inputs with one ID in each row.
  const py::array_t<std::int32_t> ones = Counted(block->num_rows() + 1);
  for (const DenseColumns& one : block->dense()) {
    dense.append(py::make_tuple(arrays.Of<bool>(one.has), arrays.Of<float>(one.values)));
  }
  for (const SparseColumns& one : block->sparse()) {
    sparse.append(py::make_tuple(
        arrays.Of<bool>(one.has), one.offsets.empty() ? ones : arrays.Of<std::int32_t>(one.offsets),
        arrays.Of<std::int64_t>(one.values), arrays.Of<float>(one.weights),
        arrays.Of<bool>(one.has_texts), arrays.Of<std::int32_t>(one.text_offsets),
        arrays.Of<std::int32_t>(one.text_ends), arrays.Of<std::uint8_t>(one.texts)));
  }
  return py::make_tuple(RequestsOf(*block, arrays), dense, sparse);
}

}  // namespace

void DefineAnswered(py::module_& module) {
  py::class_<AnswerBlock, std::shared_ptr<AnswerBlock>>(module, "AnsweredBlock")
      .def("__len__", [](const AnswerBlock& self) { return self.num_requests(); })
      .def_property_readonly("num_bytes", &AnswerBlock::num_bytes)
      .def_property_readonly("has_inputs", &AnswerBlock::has_inputs)
      .def("draws",
           [](const std::shared_ptr<AnswerBlock>& self) {
             return Arrays(self).Of<double>(self->requests().draws);
           })
      .def("columns", &ColumnsOf);
}

}  // namespace recsys
