#include "model/answers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/text.h"
#include "check/json/checked_json.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kMostRows = 16, kMostIds = 8192;
/// Differences are relative to the largest number of an output, or to this one.
constexpr double kLeast = 1.0 / 1024;

Error Wrong(const std::string& at, const std::string& expected) {
  return {ErrorKind::kManifest, "manifest.answers." + at + ": expected " + expected};
}

at::Tensor Whole(const Json& numbers, const std::string& at, std::int64_t count) {
  const bool fits =
      numbers.is_array() && static_cast<std::int64_t>(numbers.size()) == count &&
      std::all_of(numbers.begin(), numbers.end(), [](const Json& number) {
        return number.is_number_integer() &&
               !(number.is_number_unsigned() &&
                 number.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max());
      });
  if (!fits) throw Wrong(at, std::to_string(count) + " whole numbers");
  at::Tensor found = at::empty({count}, at::kLong);
  std::int64_t* to = found.mutable_data_ptr<std::int64_t>();
  for (const Json& number : numbers) *to++ = number.get<std::int64_t>();
  return found;
}

/// Reads float32 numbers, which are written as the whole numbers of their bits.
at::Tensor Floats(const Json& numbers, const std::string& at, std::vector<std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  const at::Tensor bits = Whole(numbers, at, count);
  if (count > 0 && (bits.min().item<std::int64_t>() < std::numeric_limits<std::int32_t>::min() ||
                    bits.max().item<std::int64_t>() > std::numeric_limits<std::int32_t>::max())) {
    throw Wrong(at, "the bits of float32 numbers, as whole numbers");
  }
  return bits.to(at::kInt).view(at::kFloat).view(shape);
}

const Json& FieldOf(const Json& data, const char* key) {
  static const Json nothing;
  const auto found = data.find(key);
  return found == data.end() ? nothing : *found;
}

}  // namespace

Answers::Answers(const Json& data, const Signature& signature) : signature_(signature) {
  const std::string at = "manifest.answers";
  num_rows_ = JsonCount(data, "num_rows", at);
  if (num_rows_ > kMostRows) throw Wrong("num_rows", "1 to " + std::to_string(kMostRows));
  const Json& tolerance = FieldOf(data, "tolerance");
  tolerance_ = tolerance.is_number_float() ? tolerance.get<double>() : -1;
  if (!(tolerance_ >= 0 && tolerance_ <= 1)) throw Wrong("tolerance", "a number from 0 to 1");
  const Json& dense = FieldOf(data, "dense");
  if (!dense.is_array() || dense.size() != signature.dense.size()) {
    throw Wrong("dense", std::to_string(signature.dense.size()) + " lists");
  }
  for (std::size_t i = 0; i < dense.size(); ++i) {
    dense_.push_back(Floats(dense[i], "dense[" + std::to_string(i) + "]",
                            {num_rows_, signature.dense[i].width}));
  }
  const auto num_features = static_cast<std::int64_t>(signature.sparse.size());
  lengths_ = Whole(FieldOf(data, "lengths"), "lengths", num_features * num_rows_);
  if (lengths_.numel() > 0 &&
      (lengths_.min().item<std::int64_t>() < 0 || lengths_.max().item<std::int64_t>() > kMostIds)) {
    throw Wrong("lengths", "0 to " + std::to_string(kMostIds));
  }
  const std::int64_t num_ids = lengths_.sum().item<std::int64_t>();
  values_ = Whole(FieldOf(data, "values"), "values", num_ids);
  if (signature.is_weighted()) weights_ = Floats(FieldOf(data, "weights"), "weights", {num_ids});
  const Json& outputs = FieldOf(data, "outputs");
  if (!outputs.is_object()) throw Wrong("outputs", "an object");
  for (const auto& item : outputs.items()) {
    const auto found =
        std::find_if(signature.outputs.begin(), signature.outputs.end(), [&](const Output& output) {
          return output.name == item.key() && output.type == OutputType::kFloat32;
        });
    if (found == signature.outputs.end()) {
      throw Wrong("outputs", "the signature's outputs of float32 numbers");
    }
    outputs_.emplace_back(
        item.key(), Floats(item.value(), "outputs." + Short(item.key()), found->Dims(num_rows_)));
  }
}

std::vector<c10::IValue> Answers::Inputs(bool is_ranking) const {
  std::vector<c10::IValue> inputs(dense_.begin(), dense_.end());
  const auto num_features = static_cast<std::int64_t>(signature_.sparse.size());
  const at::Tensor ends = lengths_.view({num_features, num_rows_}).sum(1).cumsum(0);
  const auto add = [&](bool of_context) {
    std::vector<at::Tensor> lengths{lengths_.slice(0, 0, 0)}, values{values_.slice(0, 0, 0)};
    std::vector<at::Tensor> weights;
    if (weights_.defined()) weights.push_back(weights_.slice(0, 0, 0));
    for (std::size_t i = 0; i < signature_.sparse.size(); ++i) {
      if (is_ranking && signature_.InContext(signature_.sparse[i].name) != of_context) continue;
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t start = i == 0 ? 0 : ends[at - 1].item<std::int64_t>();
      const std::int64_t end = ends[at].item<std::int64_t>();
      lengths.push_back(lengths_.slice(0, at * num_rows_, (at + 1) * num_rows_));
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
  if (is_ranking) inputs.emplace_back(at::arange(num_rows_, at::kLong));
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
