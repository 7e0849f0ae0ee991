#include "model/graphs/fbgemm.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// In order of their dependencies (FBGEMM 1.8): they find each other by name alone.
constexpr const char* kLibraries[] = {
    "asmjit.so",
    "fbgemm.so",
    "fbgemm_gpu_config.so",
    "fbgemm_gpu_sparse_async_cumsum.so",
    "fbgemm_gpu_py.so",
    "fbgemm_gpu_tbe_common.so",
    "fbgemm_gpu_tbe_inference.so",
};

constexpr char kWhatToDo[] =
    "; set RECSYS_FBGEMM_PATH to the folder of an installed fbgemm_gpu package that fits this "
    "torch (";

/// Returns the folder of libtorch, which this process has already loaded.
std::filesystem::path FolderOfTorch() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<void*>(&at::get_num_threads), &found) == 0) return {};
  return std::filesystem::path(found.dli_fname).parent_path();
}

/// Without a path and a variable: next to the torch package, where pip installs both.
std::string FolderOf(const std::string& path) {
  if (!path.empty()) return path;
  const char* variable = std::getenv("RECSYS_FBGEMM_PATH");
  if (variable != nullptr && *variable != '\0') return variable;
  return (FolderOfTorch() / "../../fbgemm_gpu").lexically_normal().string();
}

[[noreturn]] void Refuse(const char* library, const std::string& why) {
  throw Error(ErrorKind::kLibrary,
              "library " + Repr(library) + ": " + why + kWhatToDo + "torch " TORCH_VERSION ")");
}

/// Removes the folder from the loader's message: error texts contain no paths.
std::string WithoutFolder(std::string text, const std::string& folder) {
  for (std::size_t at = text.find(folder); at != text.npos; at = text.find(folder, at)) {
    text.erase(at, folder.size() + (text.compare(at + folder.size(), 1, "/") == 0 ? 1 : 0));
  }
  return text;
}

/// Loads libtorch.so, which FBGEMM's libraries need by name. A program linked directly with the
/// libraries that it calls has not loaded it.
void LoadTorch() {
  // If this fails, the next library's error says so.
  dlopen((FolderOfTorch() / "libtorch.so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

void LoadFbgemm(const std::string& path) {
  static std::mutex mutex;
  static bool is_loaded = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_loaded) return;
  const std::string folder = FolderOf(path);
  LoadTorch();
  for (const char* library : kLibraries) {
    const std::string file = folder + "/" + library;
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) {
      Refuse(library, "missing where fbgemm_gpu should be");
    }
    // Never closed: registered operators stay for the life of the process.
    if (dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
      const char* why = dlerror();
      Refuse(library, WithoutFolder(why == nullptr ? "cannot be loaded" : why, folder));
    }
  }
  is_loaded = true;
}

}  // namespace recsys
