#ifndef RECSYS_MODEL_SKELETON_H_
#define RECSYS_MODEL_SKELETON_H_

// TorchScript behind one small interface (recsys/torchscript.py, and what of recsys/artifact.py
// touches modules).

#include <torch/script.h>

#include <string>
#include <vector>

#include "check/files/manifest.h"
#include "model/device_rows.h"

namespace recsys {

/// Reads a scripted module from bytes into host memory; `name`: of the file, for messages.
/// Throws Error: kLibrary where an operator is missing here, kManifest where it is no readable
/// TorchScript.
torch::jit::Module LoadScript(const std::string& bytes, const std::string& name);

/// The same from a file.
torch::jit::Module LoadScriptFile(const std::string& path);

/// The tensor at a dotted path. Throws Error (kManifest).
at::Tensor TensorAt(const torch::jit::Module& module, const std::string& path);

/// Gives every lookup its rows, and every device its tensors. Throws Error (kManifest) where the
/// module has other buffers for rows than the manifest says.
void Place(torch::jit::Module* module, const Graph& graph, const std::vector<DeviceRows>& ranks);

/// Lets another form hold the first one's tensors where they are the same: dense weights, mappings
/// of raw IDs.
void Share(const torch::jit::Module& module, torch::jit::Module* other);

/// The module with its tensors as constants of the graph, by reference: they must be in place
/// already.
torch::jit::Module Freeze(torch::jit::Module module);

}  // namespace recsys

#endif  // RECSYS_MODEL_SKELETON_H_
