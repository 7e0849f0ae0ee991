#include "binding/values.h"

namespace recsys {

namespace py = pybind11;

py::str Text(std::string_view text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::list Raw(const std::vector<std::string>& all) {
  py::list list;
  for (const std::string& bytes : all) list.append(py::bytes(bytes));
  return list;
}

}  // namespace recsys
