#include "rest/json/predict_body.h"

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rest/json/reader.h"
#include "rest/json/values.h"
#include "wire/predict_messages.h"
#include "wire/writer.h"

namespace recsys {
namespace {

/// Finds the inputs of a signature by name. Most requests name them in its order.
template <typename Input>
class Inputs {
 public:
  explicit Inputs(const std::vector<Input>& inputs) : inputs_(inputs), is_taken_(inputs.size()) {}

  /// Returns the input; null if there is none, or it was taken before.
  const Input* Take(std::string_view name) {
    std::size_t i = next_;
    if (i >= inputs_.size() || inputs_[i].name != name) {
      if (by_name_.empty()) {
        for (std::size_t k = 0; k < inputs_.size(); ++k) by_name_.emplace(inputs_[k].name, k);
      }
      const auto found = by_name_.find(name);
      if (found == by_name_.end()) return nullptr;
      i = found->second;
    }
    if (is_taken_[i]) return nullptr;
    is_taken_[i] = true;
    next_ = i + 1;
    return &inputs_[i];
  }

 private:
  const std::vector<Input>& inputs_;
  std::vector<bool> is_taken_;
  std::size_t next_ = 0;
  std::map<std::string_view, std::size_t> by_name_;
};

struct Sparse {
  std::string_view name;
  std::string lengths, values, weights;
  std::vector<std::string_view> texts;
};

struct Weights {
  std::string lengths, values;
};

/// Inputs of one kind: those with a row for each of the request's, or the context.
class Part {
 public:
  Part(const Signature& signature, const RequestLimits& limits, JsonReader* json)
      : dense_(signature.dense), sparse_(signature.sparse), limits_(limits), json_(*json) {}

  /// Reads the value of a field if it is one of inputs. Returns nothing for other fields.
  std::optional<bool> Field(std::string_view name) {
    bool* const has = name == "dense"     ? &has_dense_
                      : name == "sparse"  ? &has_sparse_
                      : name == "weights" ? &has_weights_
                                          : nullptr;
    if (has == nullptr) return std::nullopt;
    if (*has) return false;
    *has = true;
    return json_.Object([&](std::string_view input) {
      if (has == &has_dense_) return Dense(input);
      return has == &has_sparse_ ? SparseInput(input) : WeightsOf(input);
    });
  }

  /// Appends the inputs; returns false if weights do not match.
  bool Finish(std::uint32_t dense_field, std::uint32_t sparse_field, std::string* message) {
    for (const auto& [name, values] : values_) {
      AppendInput(dense_field, RawDense{name, values}, message);
    }
    for (Sparse& input : read_) {
      const auto weights = weights_.find(input.name);
      if (weights != weights_.end()) {
        if (weights->second.lengths != input.lengths) return false;
        input.weights = std::move(weights->second.values);
        weights_.erase(weights);
      }
      AppendSparse(sparse_field, input, message);
    }
    return weights_.empty();
  }

  bool is_empty() const { return values_.empty() && read_.empty(); }
  /// The rows of its first input; nothing if they differ.
  std::int64_t num_rows() const { return num_rows_; }
  bool is_even() const { return is_even_; }

 private:
  void Count(std::int64_t num_rows) {
    if (num_rows_ < 0) num_rows_ = num_rows;
    is_even_ = is_even_ && num_rows == num_rows_;
  }

  bool Dense(std::string_view name) {
    const DenseInput* const input = dense_.Take(name);
    if (input == nullptr) return false;
    std::string values;
    std::int64_t num_rows = 0, width = -1;
    bool is_flat = false;
    const bool is_read = json_.List([&] {
      if (++num_rows > limits_.max_rows) return false;
      if (json_.Peek() != '[') {
        is_flat = true;
        return Number(&values);
      }
      std::int64_t num_numbers = 0;
      if (!json_.List([&] { return ++num_numbers, Number(&values); })) return false;
      if (width < 0) width = num_numbers;
      return num_numbers == width;
    });
    if (!is_read || (is_flat && (width >= 0 || input->width > 1))) return false;
    Count(num_rows);
    values_.emplace_back(name, std::move(values));
    return true;
  }

  /// A missing number is null.
  bool Number(std::string* values) {
    float number = std::numeric_limits<float>::quiet_NaN();
    if (!json_.TakeNull() && !json_.Float(&number)) return false;
    AppendValue(number, values);
    return true;
  }

  /// Calls `item` for each item of each row; rows of one item may be the item.
  template <typename Item>
  bool Rows(std::string* lengths, Item item) {
    std::int64_t num_rows = 0;
    return json_.List([&] {
      if (++num_rows > limits_.max_rows) return false;
      std::int32_t length = 0;
      const auto next = [&] { return ++length, item(); };
      if (json_.Peek() == '[' ? !json_.List(next) : !next()) return false;
      AppendValue(length, lengths);
      return true;
    });
  }

  bool SparseInput(std::string_view name) {
    if (sparse_.Take(name) == nullptr) return false;
    Sparse& input = read_.emplace_back();
    input.name = name;
    const bool is_read = Rows(&input.lengths, [&] {
      if (++num_ids_ > limits_.max_ids) return false;
      if (json_.Peek() == '"') {
        return input.values.empty() && json_.Text(&input.texts.emplace_back());
      }
      std::int64_t id = 0;
      if (!input.texts.empty() || !json_.Whole(&id)) return false;
      AppendValue(id, &input.values);
      return true;
    });
    Count(static_cast<std::int64_t>(input.lengths.size() / sizeof(std::int32_t)));
    return is_read;
  }

  bool WeightsOf(std::string_view name) {
    const auto placed = weights_.try_emplace(name);
    std::int64_t num_weights = 0;
    return placed.second && weights_.size() <= kMostWeights &&
           Rows(&placed.first->second.lengths, [&] {
             return ++num_weights <= limits_.max_ids && Number(&placed.first->second.values);
           });
  }

  static void AppendSparse(std::uint32_t field, const Sparse& input, std::string* message) {
    RawSparse raw{input.name, input.lengths, input.values, input.weights};
    if (!input.texts.empty()) raw.texts = RawTexts::Of(input.texts);
    AppendInput(field, raw, message);
  }

  static constexpr std::size_t kMostWeights = 65536;
  Inputs<recsys::DenseInput> dense_;
  Inputs<recsys::SparseInput> sparse_;
  const RequestLimits& limits_;
  JsonReader& json_;
  bool has_dense_ = false, has_sparse_ = false, has_weights_ = false;
  std::vector<std::pair<std::string_view, std::string>> values_;
  std::vector<Sparse> read_;
  std::map<std::string_view, Weights> weights_;
  std::int64_t num_ids_ = 0;
  std::int64_t num_rows_ = -1;
  bool is_even_ = true;
};

}  // namespace

bool ReadPredictBody(const RestTarget& target, std::string_view text, const Signature& signature,
                     const RequestLimits& limits, std::string* message) {
  JsonReader json(text);
  Part rows(signature, limits, &json), context(signature, limits, &json);
  std::string_view id;
  bool has_id = false, has_context = false;
  const bool is_read = json.Object([&](std::string_view name) {
    if (const auto read = rows.Field(name)) return *read;
    if (name == "id" && !std::exchange(has_id, true)) {
      return json.Text(&id) && id.size() <= kMostBytesOfId;
    }
    if (name != "context" || std::exchange(has_context, true)) return false;
    return json.Object([&](std::string_view part) { return context.Field(part).value_or(false); });
  });
  if (!is_read || !json.AtEnd() || !rows.is_even()) return false;
  // Without inputs the errors of Python are about the whole body.
  if (rows.is_empty() || (has_context && context.is_empty())) return false;
  AppendBytes(1, target.model, message);
  AppendBytes(2, id, message);
  AppendNumber(kNumRows, static_cast<std::uint64_t>(rows.num_rows()), message);
  AppendBytes(8, target.version, message);
  return rows.Finish(kDense, kSparse, message) &&
         context.Finish(kContextDense, kContextSparse, message);
}

}  // namespace recsys
