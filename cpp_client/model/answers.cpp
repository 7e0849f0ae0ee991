#include "model/answers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "format/manifest/verified_rows.h"
#include "model/graphs/graphs.h"
#include "recsys/error.h"

namespace recsys {
namespace {

/// Differences are relative to the largest number of an output, or to this one.
constexpr double kLeast = 1.0 / 1024;

at::Tensor Copy(const std::vector<float>& numbers, const std::vector<std::int64_t>& shape) {
  return at::tensor(at::ArrayRef<float>(numbers), at::kFloat).view(shape);
}

at::Tensor Copy(const std::vector<std::int64_t>& numbers) {
  return at::tensor(at::ArrayRef<std::int64_t>(numbers), at::kLong);
}

}  // namespace

Answers::Answers(const Json& data, const Signature& signature)
    : signature_(signature),
      rows_(ReadVerifiedRows(data, signature)),
      tolerance_(data.at("tolerance").get<double>()) {
  for (std::size_t i = 0; i < rows_.dense.size(); ++i) {
    dense_.push_back(Copy(rows_.dense[i], {rows_.num_rows, signature.dense[i].width}));
  }
  lengths_ = Copy(rows_.lengths);
  values_ = Copy(rows_.values);
  if (signature.is_weighted()) weights_ = Copy(rows_.weights, {values_.numel()});
  const Json& outputs = AnswersField(data, "outputs");
  if (!outputs.is_object()) throw WrongAnswers("outputs", "an object");
  for (const auto& item : outputs.items()) {
    const auto found =
        std::find_if(signature.outputs.begin(), signature.outputs.end(), [&](const Output& output) {
          return output.name == item.key() && output.type == OutputType::kFloat32;
        });
    if (found == signature.outputs.end()) {
      throw WrongAnswers("outputs", "the signature's outputs of float32 numbers");
    }
    const std::vector<std::int64_t> dims = found->Dims(rows_.num_rows);
    const std::int64_t count =
        std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
    outputs_.emplace_back(
        item.key(), Copy(AnswersFloats(item.value(), "outputs." + Short(item.key()), count), dims));
  }
}

std::vector<c10::IValue> Answers::Inputs(bool is_ranking) const {
  std::vector<c10::IValue> inputs(dense_.begin(), dense_.end());
  const auto num_features = static_cast<std::int64_t>(signature_.sparse.size());
  const at::Tensor ends = lengths_.view({num_features, rows_.num_rows}).sum(1).cumsum(0);
  const auto add = [&](bool of_context) {
    std::vector<at::Tensor> lengths{lengths_.slice(0, 0, 0)}, values{values_.slice(0, 0, 0)};
    std::vector<at::Tensor> weights;
    if (weights_.defined()) weights.push_back(weights_.slice(0, 0, 0));
    for (std::size_t i = 0; i < signature_.sparse.size(); ++i) {
      if (is_ranking && signature_.InContext(signature_.sparse[i].name) != of_context) continue;
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t start = i == 0 ? 0 : ends[at - 1].item<std::int64_t>();
      const std::int64_t end = ends[at].item<std::int64_t>();
      lengths.push_back(lengths_.slice(0, at * rows_.num_rows, (at + 1) * rows_.num_rows));
      values.push_back(values_.slice(0, start, end));
      if (weights_.defined()) weights.push_back(weights_.slice(0, start, end));
    }
    inputs.emplace_back(at::cat(lengths));
    inputs.emplace_back(at::cat(values));
    if (weights_.defined()) inputs.emplace_back(at::cat(weights));
  };
  // Each row is its own context.
  if (is_ranking) add(true);
  add(false);
  if (is_ranking) inputs.emplace_back(at::arange(rows_.num_rows, at::kLong));
  return inputs;
}

std::string Answers::Difference(const LoadedGraphs& graphs) const {
  std::vector<std::pair<const Callable*, bool>> forms{{&graphs.plain(), false}};
  if (graphs.ranking() != nullptr) forms.emplace_back(graphs.ranking(), true);
  for (const auto& [form, is_ranking] : forms) {
    c10::IValue returned;
    try {
      const c10::InferenceMode mode;
      returned = form->Call(Inputs(is_ranking));
    } catch (const std::exception& error) {
      return "it fails: " + std::string(error.what()).substr(0, 200);
    }
    if (!returned.isGenericDict()) return "it returns no outputs by name";
    const auto dict = returned.toGenericDict();
    for (const auto& [name, want] : outputs_) {
      const auto found = dict.find(name);
      if (found == dict.end() || !found->value().isTensor() ||
          found->value().toTensor().scalar_type() != at::kFloat ||
          found->value().toTensor().sizes() != want.sizes()) {
        return "output " + Repr(name) + ": got another type or shape";
      }
      const at::Tensor got = found->value().toTensor();
      if (want.numel() == 0 || at::equal(got, want)) continue;
      const at::Tensor same = got.isnan().logical_and(want.isnan());
      const double infinity = std::numeric_limits<double>::infinity();
      const double apart = (got - want)
                               .abs()
                               .nan_to_num(infinity, infinity, infinity)
                               .masked_fill(same, 0)
                               .max()
                               .item<double>();
      const double largest = std::max(want.nan_to_num(0, 0, 0).abs().max().item<double>(), kLeast);
      if (apart > tolerance_ * largest) {
        return "output " + Repr(name) + ": " + std::to_string(apart) + " away, expected at most " +
               std::to_string(tolerance_ * largest);
      }
    }
  }
  return {};
}

}  // namespace recsys
