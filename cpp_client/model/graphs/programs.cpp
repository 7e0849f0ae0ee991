#include "model/graphs/programs.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "ops/torch/stored_program.h"
#include "recsys/error.h"

namespace recsys {
namespace {

/// Calls `make`; says of its errors which part they are in.
template <typename Make>
auto InPart(const std::string& name, Make make) {
  try {
    return make();
  } catch (const Error& error) {
    throw Error(ErrorKind::kManifest,
                "part " + Repr(name) + ": not readable as a program: " + error.what());
  }
}

}  // namespace

ProgramPart::ProgramPart(std::string name, std::string bytes)
    : name_(std::move(name)), bytes_(std::make_shared<const std::string>(std::move(bytes))) {
  program_ = InPart(name_, [&] { return std::make_shared<ops::StoredProgram>(*bytes_); });
}

const std::vector<DenseWeight>& ProgramPart::dense() const { return program_->file().dense; }

std::shared_ptr<const ops::ProgramGraph> ProgramPart::Bind(
    const at::Tensor& rows, const std::map<std::string, at::Tensor>& weights,
    const std::string& linear_dtype, const ops::ContextInputs& contexts,
    const std::shared_ptr<ops::OutsideRows>& outside) const {
  return InPart(name_,
                [&] { return program_->Bind(rows, weights, linear_dtype, contexts, outside); });
}

ops::ContextInputs ContextInputsOf(const Signature& signature,
                                   std::shared_ptr<ops::ContextCache> cache) {
  ops::ContextInputs inputs;
  inputs.is_ranking = true;
  for (std::size_t i = 0; i < signature.dense.size(); ++i) {
    if (signature.InContext(signature.dense[i].name)) inputs.dense.push_back(i);
  }
  inputs.lengths = signature.dense.size();
  inputs.num_features =
      std::count_if(signature.sparse.begin(), signature.sparse.end(),
                    [&](const SparseInput& input) { return signature.InContext(input.name); });
  inputs.is_weighted = signature.is_weighted();
  inputs.cache = std::move(cache);
  return inputs;
}

}  // namespace recsys
