#include "rest/json/rows_body.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "rest/json/reader.h"
#include "rest/json/values.h"
#include "wire/predict_messages.h"
#include "wire/writer.h"

namespace recsys {
namespace {

// Rows with more fields of no input are left to Python.
constexpr std::size_t kMostIgnored = 16;

/// A field of a row, and the part of an input that is read from it.
struct RowField {
  enum class Kind { kNumber, kNumbers, kIds, kWeights };
  std::string name;
  Kind kind = Kind::kNumber;
  std::size_t input = 0;
  std::size_t column = 0;
  /// The row that had it last.
  std::int64_t row = -1;
};

struct SparseRows {
  std::string lengths, values, weights, weight_lengths;
  std::vector<std::string_view> texts;
};

/// Reads rows one by one into the lists that each input has.
class RowsReader {
 public:
  RowsReader(const Signature& signature, const RequestLimits& limits, JsonReader* json)
      : signature_(signature),
        limits_(limits),
        json_(*json),
        dense_(signature.dense.size()),
        sparse_(signature.sparse.size()) {
    for (std::size_t i = 0; i < signature.dense.size(); ++i) {
      const DenseInput& dense = signature.dense[i];
      for (std::size_t k = 0; k < dense.columns.size(); ++k) {
        // Columns of vectors may be one field.
        is_supported_ =
            is_supported_ && (dense.columns[k].empty() || dense.columns[k].back() != ']');
        Add(dense.columns[k], RowField::Kind::kNumber, i, k);
      }
      const auto kind = dense.width == 1 ? RowField::Kind::kNumber : RowField::Kind::kNumbers;
      if (dense.columns.empty()) Add(dense.name, kind, i, 0);
    }
    for (std::size_t i = 0; i < signature.sparse.size(); ++i) {
      const SparseInput& sparse = signature.sparse[i];
      Add(sparse.name, RowField::Kind::kIds, i, 0);
      if (sparse.weighted) Add(sparse.name + ".weights", RowField::Kind::kWeights, i, 0);
    }
    for (const Output& output : signature.outputs) {
      is_supported_ = is_supported_ && !output.batch_dims.empty() && output.batch_dims.front() == 0;
    }
  }

  bool is_supported() const { return is_supported_; }
  std::int64_t num_rows() const { return num_rows_; }

  /// Reads the list of rows.
  bool Rows() {
    return json_.List([&] { return num_rows_ < limits_.max_rows && Row(); });
  }

  /// Appends the inputs; returns false if weights do not match.
  bool Finish(std::string* message) {
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      const std::string_view values(reinterpret_cast<const char*>(dense_[i].data()),
                                    dense_[i].size() * sizeof(float));
      AppendInput(kDense, RawDense{signature_.dense[i].name, values}, message);
    }
    for (std::size_t i = 0; i < sparse_.size(); ++i) {
      const SparseRows& read = sparse_[i];
      if (signature_.sparse[i].weighted && read.weight_lengths != read.lengths) return false;
      RawSparse raw{signature_.sparse[i].name, read.lengths, read.values, read.weights};
      if (!read.texts.empty()) raw.texts = RawTexts::Of(read.texts);
      AppendInput(kSparse, raw, message);
    }
    return true;
  }

 private:
  void Add(std::string name, RowField::Kind kind, std::size_t input, std::size_t column) {
    is_supported_ = is_supported_ && by_name_.emplace(name, fields_.size()).second;
    fields_.push_back(RowField{std::move(name), kind, input, column});
  }

  /// Returns the field; null for none. Most rows name their fields in the order of the first one.
  RowField* Find(std::string_view name, std::size_t place) {
    if (place < order_.size() && fields_[order_[place]].name == name) {
      return &fields_[order_[place]];
    }
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    if (place == order_.size()) order_.push_back(found->second);
    return &fields_[found->second];
  }

  bool Row() {
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      const auto width = static_cast<std::size_t>(signature_.dense[i].width);
      dense_[i].resize(dense_[i].size() + width);
    }
    ignored_.clear();
    std::size_t num_fields = 0;
    const bool is_read = json_.Object([&](std::string_view name) {
      RowField* const field = Find(name, num_fields);
      if (field == nullptr) return Ignore(name);
      ++num_fields;
      return std::exchange(field->row, num_rows_) != num_rows_ && Value(*field);
    });
    ++num_rows_;
    return is_read && num_fields == fields_.size();
  }

  /// Reads the value of a field of no input.
  bool Ignore(std::string_view name) {
    const bool is_new = std::find(ignored_.begin(), ignored_.end(), name) == ignored_.end();
    if (!is_new || ignored_.size() == kMostIgnored) return false;
    ignored_.push_back(name);
    std::string_view text;
    if (json_.Peek() == '"') return json_.Text(&text);
    float number = 0;
    return Number(true, &number);
  }

  bool Value(const RowField& field) {
    switch (field.kind) {
      case RowField::Kind::kNumber:
        return NumberOrList(field);
      case RowField::Kind::kNumbers:
        return Numbers(field);
      case RowField::Kind::kIds:
        return Ids(signature_.sparse[field.input], &sparse_[field.input]);
      default:
        return Weights(&sparse_[field.input]);
    }
  }

  /// Reads a number: null for a missing one, which is NaN, and 1 and 0 for true and false.
  bool Number(bool may_miss, float* number) {
    const char next = json_.Peek();
    if (next == 'n') {
      *number = std::numeric_limits<float>::quiet_NaN();
      return may_miss && json_.TakeNull();
    }
    if (next != 't' && next != 'f') return json_.Float(number);
    bool flag = false;
    if (!json_.Flag(&flag)) return false;
    *number = flag ? 1.0F : 0.0F;
    return true;
  }

  float* Place(const RowField& field) {
    const DenseInput& input = signature_.dense[field.input];
    const auto row = static_cast<std::size_t>(num_rows_ * input.width);
    return dense_[field.input].data() + row + field.column;
  }

  bool NumberOrList(const RowField& field) {
    const bool is_list = json_.TakeIf('[');
    return Number(signature_.dense[field.input].missing, Place(field)) &&
           (!is_list || json_.Take(']'));
  }

  bool Numbers(const RowField& field) {
    const DenseInput& input = signature_.dense[field.input];
    float* const place = Place(field);
    std::int64_t at = 0;
    return json_.List([&] { return at < input.width && Number(input.missing, place + at++); }) &&
           at == input.width;
  }

  /// Calls `item` for each item of a list, or once for one item.
  template <typename Item>
  bool Items(Item item) {
    return json_.Peek() == '[' ? json_.List(item) : item();
  }

  bool Ids(const SparseInput& input, SparseRows* read) {
    std::int32_t length = 0;
    const bool is_read = Items([&] {
      if (json_.TakeNull()) return true;
      std::string_view text;
      std::int64_t id = 0;
      bool flag = false;
      const char next = json_.Peek();
      const bool is_text = next == '"', is_flag = next == 't' || next == 'f';
      if (is_text ? !json_.Text(&text) : is_flag ? !json_.Flag(&flag) : !json_.Whole(&id)) {
        return false;
      }
      if (is_text && text.empty()) return true;
      ++length;
      if (++num_ids_ > limits_.max_ids) return false;
      if (!input.strings.empty()) {
        if (is_flag) text = flag ? "true" : "false";
        if (!is_text && !is_flag) text = made_.emplace_back(std::to_string(id));
        read->texts.push_back(text);
        return true;
      }
      if (is_flag) id = flag ? 1 : 0;
      if (is_text) {
        const auto end = text.data() + text.size();
        const auto parsed = std::from_chars(text.data(), end, id);
        if (parsed.ec != std::errc() || parsed.ptr != end) return false;
      }
      AppendValue(id, &read->values);
      return true;
    });
    AppendValue(length, &read->lengths);
    return is_read;
  }

  bool Weights(SparseRows* read) {
    std::int32_t length = 0;
    const bool is_read = json_.TakeNull() || Items([&] {
                           float number = 0;
                           if (!Number(false, &number)) return false;
                           ++length;
                           AppendValue(number, &read->weights);
                           return true;
                         });
    AppendValue(length, &read->weight_lengths);
    return is_read;
  }

  const Signature& signature_;
  const RequestLimits& limits_;
  JsonReader& json_;
  bool is_supported_ = true;
  std::vector<RowField> fields_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  /// Fields in the order in which the first row named them.
  std::vector<std::size_t> order_;
  std::vector<std::string_view> ignored_;
  std::vector<std::vector<float>> dense_;
  std::vector<SparseRows> sparse_;
  /// Whole numbers that stand for texts.
  std::deque<std::string> made_;
  std::int64_t num_rows_ = 0;
  std::int64_t num_ids_ = 0;
};

}  // namespace

bool ReadRowsBody(const RestTarget& target, std::string_view text, const Signature& signature,
                  const RequestLimits& limits, std::string* message) {
  JsonReader json(text);
  RowsReader rows(signature, limits, &json);
  if (!rows.is_supported()) return false;
  std::string_view id, signature_name;
  bool has_rows = false, has_id = false, has_name = false;
  const bool is_read = json.Object([&](std::string_view name) {
    if (name == "instances" || name == "dataframe_records") {
      return !std::exchange(has_rows, true) && rows.Rows();
    }
    if (name == "id") {
      return !std::exchange(has_id, true) && json.Text(&id) && id.size() <= kMostBytesOfId;
    }
    return name == "signature_name" && !std::exchange(has_name, true) &&
           json.Text(&signature_name) &&
           (signature_name.empty() || signature_name == "serving_default");
  });
  if (!is_read || !json.AtEnd() || rows.num_rows() == 0) return false;
  AppendBytes(1, target.model, message);
  AppendBytes(2, id, message);
  AppendNumber(kNumRows, static_cast<std::uint64_t>(rows.num_rows()), message);
  AppendBytes(8, target.version, message);
  return rows.Finish(message);
}

}  // namespace recsys
