#ifndef RECSYS_MODEL_GRAPHS_SKELETON_H_
#define RECSYS_MODEL_GRAPHS_SKELETON_H_

// A small interface to TorchScript (recsys/scripting/torchscript.py, and the parts of
// recsys/artifact/load.py that access modules).

#include <torch/script.h>

#include <map>
#include <string>
#include <vector>

#include "format/manifest/manifest.h"
#include "model/rows/device_rows.h"

namespace recsys {

/// Reads a scripted module from bytes into host memory; `name`: the file's, for messages. Throws
/// Error: kLibrary if an operator is missing, kManifest if it is not readable TorchScript.
torch::jit::Module LoadScript(const std::string& bytes, const std::string& name);

/// Like LoadScript, from a file.
torch::jit::Module LoadScriptFile(const std::string& path);

/// Returns the tensor at a dotted path. Throws Error (kManifest).
at::Tensor TensorAt(const torch::jit::Module& module, const std::string& path);

/// Sets each lookup's rows, and moves tensors to their devices. Throws Error (kManifest) if the
/// module's buffers for rows differ from those in the manifest.
void Place(torch::jit::Module* module, const Graph& graph, const std::vector<DeviceRows>& ranks);

/// Tensors by their paths in a module.
using TensorMap = std::map<std::string, at::Tensor>;

/// Returns the tensors that deltas may change: all outside embedding collections. Those of
/// collections say where rows lie and how IDs are routed; operators trust them.
TensorMap DenseTensors(const torch::jit::Module& module, const Plan& plan);

/// Sets tensors that the module has, each under all names that it has for the one before it.
void SetTensors(const torch::jit::Module& module, const TensorMap& tensors);

/// Sets the buckets of mappings, by path; a form that reads none of them has no such tensor.
void PlaceMappings(const torch::jit::Module& module, const TensorMap& slots);

/// Makes another form share the first one's equal tensors: dense weights, mappings of raw IDs.
void Share(const torch::jit::Module& module, torch::jit::Module* other);

/// Returns the module with its tensors as constants of the graph, by reference: they must already
/// be in place.
torch::jit::Module Freeze(torch::jit::Module module);

}  // namespace recsys

#endif  // RECSYS_MODEL_GRAPHS_SKELETON_H_
