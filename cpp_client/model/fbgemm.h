#ifndef RECSYS_MODEL_FBGEMM_H_
#define RECSYS_MODEL_FBGEMM_H_

#include <string>

namespace recsys {

/// Loads the libraries that hold the graphs' operators, once in the process; later calls do
/// nothing. Thread-safe. The folder is `path`; where that is empty RECSYS_FBGEMM_PATH of the
/// environment, or else `fbgemm_gpu` beside the loaded package `torch`. Throws Error (kLibrary):
/// which library is missing or does not fit, and what to do.
void LoadFbgemm(const std::string& path);

}  // namespace recsys

#endif  // RECSYS_MODEL_FBGEMM_H_
