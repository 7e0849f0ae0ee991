#include "model/graphs/skeleton.h"

#include <caffe2/serialize/in_memory_adapter.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "format/file_name.h"
#include "ops/torch/module_path.h"
#include "recsys/error.h"

namespace recsys {
namespace {

using torch::jit::Module;

Error OtherAttributes() {
  return {ErrorKind::kManifest,
          "manifest.targets: the skeleton has other attributes than the manifest says"};
}

/// Whether a path ends in `lookups.<number>.rows`: a buffer that takes rows.
bool IsLookupRows(const std::string& path) {
  constexpr std::string_view kEnd = ".rows", kStart = "lookups.";
  if (path.size() < kEnd.size() || path.compare(path.size() - kEnd.size(), kEnd.npos, kEnd) != 0) {
    return false;
  }
  std::size_t at = path.size() - kEnd.size();
  const std::size_t end = at;
  while (at > 0 && std::isdigit(static_cast<unsigned char>(path[at - 1])) != 0) --at;
  if (at == end || at < kStart.size()) return false;
  at -= kStart.size();
  return path.compare(at, kStart.size(), kStart) == 0 && (at == 0 || path[at - 1] == '.');
}

void SetTensor(const Module& module, const std::string& path, const at::Tensor& value) {
  auto found = ops::TensorHolder(module, path);
  if (!found) throw OtherAttributes();
  found->first.setattr(found->second, value);
}

/// A tensor, and all names that it has in a module, in their order: of layers that share a weight.
struct Named {
  at::Tensor tensor;
  std::vector<std::string> names;
};

std::map<const at::TensorImpl*, Named> AllNamed(const Module& module) {
  std::map<const at::TensorImpl*, Named> all;
  const auto add = [&all](const auto& some) {
    for (const auto& found : some) {
      Named& named = all[found.value.unsafeGetTensorImpl()];
      named.tensor = found.value;
      named.names.push_back(found.name);
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return all;
}

/// Returns all tensors by their first names.
TensorMap AllTensors(const Module& module) {
  TensorMap tensors;
  for (const auto& [of, named] : AllNamed(module)) tensors.emplace(named.names[0], named.tensor);
  return tensors;
}

template <typename Load>
Module Loaded(const std::string& name, Load load) {
  try {
    Module module = load();
    module.eval();
    return module;
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("Unknown builtin op") != std::string_view::npos) {
      throw Error(ErrorKind::kLibrary,
                  "part " + Repr(name) +
                      ": this torch or fbgemm-gpu lacks an operator that the graph names");
    }
    throw Error(ErrorKind::kManifest,
                "part " + Repr(name) + ": not readable as TorchScript (RuntimeError)");
  }
}

}  // namespace

Module LoadScript(const std::string& bytes, const std::string& name) {
  return Loaded(name, [&] {
    return torch::jit::load(std::make_shared<caffe2::serialize::MemoryReadAdapter>(
                                bytes.data(), static_cast<off_t>(bytes.size())),
                            at::Device(at::kCPU));
  });
}

Module LoadScriptFile(const std::string& path) {
  return Loaded(NameOfPath(path), [&] { return torch::jit::load(path, at::Device(at::kCPU)); });
}

at::Tensor TensorAt(const Module& module, const std::string& path) {
  const auto found = ops::TensorHolder(module, path);
  if (!found) throw OtherAttributes();
  return found->first.attr(found->second).toTensor();
}

void Place(Module* module, const Graph& graph, const std::vector<DeviceRows>& ranks) {
  std::set<std::string> expected, found;
  for (const auto& rows : graph.rows) expected.insert(rows.first);
  for (const auto& buffer : module->named_buffers()) {
    if (IsLookupRows(buffer.name)) found.insert(buffer.name);
  }
  if (found != expected) throw OtherAttributes();
  TensorMap tensors;
  for (const auto& [path, rank] : graph.ranks) {
    if (expected.count(path) > 0) continue;
    tensors[path] = TensorAt(*module, path).to(ranks[static_cast<std::size_t>(rank)].device);
  }
  for (const auto& [path, rank] : graph.rows) {
    tensors[path] = ranks[static_cast<std::size_t>(rank)].rows;
  }
  SetTensors(*module, tensors);
}

TensorMap DenseTensors(const Module& module, const Plan& plan) {
  TensorMap dense;
  for (auto& [path, tensor] : AllTensors(module)) {
    const bool is_apart =
        std::any_of(plan.begin(), plan.end(), [&path = path](const CollectionPlan& collection) {
          const std::string start =
              collection.path.empty() ? "model." : "model." + collection.path + ".";
          return path.compare(0, start.size(), start) == 0;
        });
    if (!is_apart) dense.emplace(path, tensor);
  }
  return dense;
}

void SetTensors(const Module& module, const TensorMap& tensors) {
  const auto all = AllNamed(module);
  for (const auto& [path, tensor] : tensors) {
    const auto found = all.find(TensorAt(module, path).unsafeGetTensorImpl());
    if (found == all.end()) {
      SetTensor(module, path, tensor);
      continue;
    }
    for (const std::string& name : found->second.names) SetTensor(module, name, tensor);
  }
}

void PlaceMappings(const Module& module, const TensorMap& slots) {
  TensorMap held;
  for (const auto& [path, tensor] : slots) {
    if (ops::TensorHolder(module, path)) held.emplace(path, tensor);
  }
  SetTensors(module, held);
}

void Share(const Module& module, Module* other) {
  const TensorMap held = AllTensors(module);
  TensorMap shared;
  for (const auto& [path, tensor] : AllTensors(*other)) {
    const auto same = held.find(path);
    // Rows are already shared.
    if (same == held.end() || IsLookupRows(path)) continue;
    const at::Tensor& ours = same->second;
    if (ours.dtype() != tensor.dtype() || ours.device() != tensor.device()) continue;
    if (at::equal(ours, tensor)) shared.emplace(path, ours);
  }
  SetTensors(*other, shared);
}

Module Freeze(Module module) {
  module.eval();
  return torch::jit::freeze(module);
}

}  // namespace recsys
