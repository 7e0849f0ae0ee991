#ifndef RECSYS_OPS_TORCH_MODULE_PATH_H_
#define RECSYS_OPS_TORCH_MODULE_PATH_H_

#include <torch/csrc/jit/api/module.h>

#include <optional>
#include <string>
#include <utility>

namespace recsys::ops {

/// Returns the module that has the tensor of a dotted path, and the tensor's name there; nothing
/// where there is no such tensor.
inline std::optional<std::pair<torch::jit::Module, std::string>> TensorHolder(
    torch::jit::Module module, const std::string& path) {
  std::size_t at = 0;
  for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', at)) {
    const std::string name = path.substr(at, dot - at);
    if (!module.hasattr(name) || !module.attr(name).isModule()) return std::nullopt;
    module = module.attr(name).toModule();
    at = dot + 1;
  }
  std::string name = path.substr(at);
  if (!module.hasattr(name) || !module.attr(name).isTensor()) return std::nullopt;
  return std::make_pair(std::move(module), std::move(name));
}

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_MODULE_PATH_H_
