// recsys.kernels._ops: the operators of recsys_ops for Python.

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "binding/build.h"
#include "ops/isa.h"
#include "ops/torch/exchange.h"
#include "ops/torch/operators.h"

namespace py = pybind11;

PYBIND11_MODULE(_ops, module) {
  recsys::ops::RegisterOperators();
  module.attr("BUILD") = recsys::kBuild;
  module.def("exchange", [](torch::jit::Module& frozen, const std::string& dtype, bool plans) {
    const recsys::ops::Exchanged found = recsys::ops::Exchange(&frozen, dtype, plans);
    return py::make_tuple(found.num_linear, found.num_dot, found.num_lookup, found.num_planned,
                          found.left);
  });
  module.def("isa", [] { return recsys::ops::NameOf(recsys::ops::ChosenIsa()); });
  module.def("force_isa", &recsys::ops::ForceIsa);
}
