#ifndef RECSYS_MODEL_GRAPHS_FBGEMM_H_
#define RECSYS_MODEL_GRAPHS_FBGEMM_H_

#include <string>

namespace recsys {

/// Loads the libraries with the graphs' operators once per process; later calls do nothing.
/// Thread-safe. The folder is `path`; if empty, the environment's RECSYS_FBGEMM_PATH, or else
/// `fbgemm_gpu` next to the loaded `torch` package. Throws Error (kLibrary): says which library is
/// missing or incompatible, and what to do.
void LoadFbgemm(const std::string& path);

}  // namespace recsys

#endif  // RECSYS_MODEL_GRAPHS_FBGEMM_H_
