#ifndef RECSYS_BINDING_BUILD_H_
#define RECSYS_BINDING_BUILD_H_

namespace recsys {

/// What a Python module was built with. recsys/base/native_module.py searches the file for this
/// text before loading it, because loading with another torch could fail or crash.
[[gnu::used]] static constexpr char kBuild[] =
    "recsys-native-build {\"engine\": \"" RECSYS_VERSION "\", \"torch\": \"" RECSYS_TORCH_VERSION
    "\", \"fbgemm_gpu\": \"" RECSYS_FBGEMM_VERSION "\"}";

}  // namespace recsys

#endif  // RECSYS_BINDING_BUILD_H_
