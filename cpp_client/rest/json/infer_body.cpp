#include "rest/json/infer_body.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "rest/json/reader.h"
#include "rest/json/values.h"
#include "wire/infer/infer_tensors.h"
#include "wire/writer.h"

namespace recsys {
namespace {

// Deeper lists have more dimensions than any input takes.
constexpr std::size_t kMostDims = 8;

/// Appends the next value of a tensor, little-endian.
bool AppendNext(std::string_view datatype, JsonReader* json, std::string* data) {
  if (datatype == "FP32") {
    // A missing number is null.
    float number = std::numeric_limits<float>::quiet_NaN();
    if (!json->TakeNull() && !json->Float(&number)) return false;
    AppendValue(number, data);
  } else if (datatype == kTextType) {
    std::string_view text;
    if (!json->Text(&text)) return false;
    AppendValue(static_cast<std::uint32_t>(text.size()), data);
    data->append(text);
  } else {
    std::int64_t number = 0;
    if (!json->Whole(&number)) return false;
    if (datatype == "INT64") {
      AppendValue(number, data);
    } else {
      if (number != static_cast<std::int32_t>(number)) return json->Fail();
      AppendValue(static_cast<std::int32_t>(number), data);
    }
  }
  return true;
}

struct Tensor {
  std::string_view name;
  std::string_view datatype;
  std::vector<std::int64_t> shape;
  bool is_binary = false;
  std::int64_t num_binary_bytes = 0;
};

/// Converts a tensor's values, in one flat list, or in lists of its shape.
class Values {
 public:
  Values(const Tensor& tensor, JsonReader* json, std::string* data)
      : tensor_(tensor), json_(*json), data_(data) {}

  bool Read() { return Read(0); }

 private:
  bool Read(std::size_t depth) {
    std::int64_t num_items = 0;
    const bool is_read = json_.List([&] {
      ++num_items;
      if (json_.Peek() == '[') return depth + 1 < kMostDims && !IsLeaf(depth) && Read(depth + 1);
      if (depth_ == kUnknown) depth_ = depth;
      return depth_ == depth && AppendNext(tensor_.datatype, &json_, data_);
    });
    if (!is_read) return false;
    if (depth == 0 && (depth_ == 0 || num_items == 0)) return true;
    return num_items > 0 && depth < tensor_.shape.size() && num_items == tensor_.shape[depth];
  }
  bool IsLeaf(std::size_t depth) const { return depth_ != kUnknown && depth >= depth_; }

  static constexpr std::size_t kUnknown = kMostDims;
  const Tensor& tensor_;
  JsonReader& json_;
  std::string* const data_;
  /// Where the values are.
  std::size_t depth_ = kUnknown;
};

/// Takes a name into a set of a few; returns false if it is there already.
template <std::size_t kNum>
class Names {
 public:
  explicit Names(const char* const (&known)[kNum]) : known_(known) {}
  /// Returns the number of the name; kNum if it is not known or was taken before.
  std::size_t Take(std::string_view name) {
    for (std::size_t i = 0; i < kNum; ++i) {
      if (name == known_[i] && (seen_ >> i & 1) == 0) {
        seen_ |= 1U << i;
        return i;
      }
    }
    return kNum;
  }
  bool Has(std::size_t i) const { return (seen_ >> i & 1) != 0; }

 private:
  const char* const (&known_)[kNum];
  unsigned seen_ = 0;
};

bool IsKnownType(std::string_view datatype) {
  return datatype == kTextType || DatatypeBytes(datatype) > 0;
}

class Body {
 public:
  Body(std::string_view json, std::string_view binary, std::string* message, InferForm* form)
      : text_(json), json_(json), binary_(binary), message_(message), form_(*form) {}

  bool Read() {
    static constexpr const char* kFields[] = {"inputs", "outputs", "id", "parameters"};
    Names names(kFields);
    const bool is_read = json_.Object([&](std::string_view name) {
      switch (names.Take(name)) {
        case 0:
          return json_.List([&] { return Input(); });
        case 1:
          return json_.List([&] { return Output(); });
        case 2:
          return Id();
        case 3:
          return Parameters();
        default:
          return false;
      }
    });
    if (!is_read || !json_.AtEnd() || !binary_.empty()) return false;
    message_->append(contents_);
    for (std::size_t i = 0; i < has_own_.size(); ++i) {
      if (!has_own_[i]) form_.outputs[i].second = form_.is_binary;
    }
    return true;
  }

 private:
  bool Id() {
    std::string_view id;
    if (!json_.Text(&id) || id.size() > kMostBytesOfId) return false;
    AppendBytes(3, id, message_);
    return true;
  }

  bool Parameters() {
    static constexpr const char* kFields[] = {"binary_data_output"};
    Names names(kFields);
    return json_.Object([&](std::string_view name) {
      return names.Take(name) == 0 && json_.Flag(&form_.is_binary);
    });
  }

  bool Input() {
    static constexpr const char* kFields[] = {"name", "datatype", "shape", "data", "parameters"};
    Names names(kFields);
    Tensor tensor;
    std::string data;
    std::string_view later;
    const bool is_read = json_.Object([&](std::string_view name) {
      switch (names.Take(name)) {
        case 0:
          return json_.Text(&tensor.name);
        case 1:
          return json_.Text(&tensor.datatype);
        case 2:
          return json_.List([&] {
            tensor.shape.push_back(0);
            return tensor.shape.size() <= kMostDims && json_.Whole(&tensor.shape.back());
          });
        case 3: {
          if (names.Has(1) && names.Has(2)) {
            return IsKnownType(tensor.datatype) && Values(tensor, &json_, &data).Read();
          }
          json_.Peek();
          const std::size_t begin = json_.position();
          if (!json_.SkipList()) return false;
          later = text_.substr(begin, json_.position() - begin);
          return true;
        }
        case 4:
          return BinarySize(&tensor);
        default:
          return false;
      }
    });
    // An absent shape or type is an error; so is data in both forms, or in none.
    if (!is_read || !names.Has(1) || !names.Has(2) || names.Has(3) == tensor.is_binary) {
      return json_.Fail();
    }
    if (!later.empty()) {
      JsonReader again(later);
      const bool is_whole =
          IsKnownType(tensor.datatype) && Values(tensor, &again, &data).Read() && again.AtEnd();
      if (!is_whole) return json_.Fail();
    }
    return Append(tensor, data);
  }

  bool BinarySize(Tensor* tensor) {
    static constexpr const char* kFields[] = {"binary_data_size"};
    Names names(kFields);
    return json_.Object([&](std::string_view name) {
      tensor->is_binary = names.Take(name) == 0;
      return tensor->is_binary && json_.Whole(&tensor->num_binary_bytes);
    });
  }

  bool Append(const Tensor& tensor, std::string_view data) {
    if (tensor.is_binary) {
      if (tensor.num_binary_bytes < 0 ||
          static_cast<std::uint64_t>(tensor.num_binary_bytes) > binary_.size()) {
        return json_.Fail();
      }
      data = binary_.substr(0, static_cast<std::size_t>(tensor.num_binary_bytes));
      binary_.remove_prefix(data.size());
    }
    std::string shape;
    for (const std::int64_t size : tensor.shape) {
      AppendVarint(static_cast<std::uint64_t>(size), &shape);
    }
    AppendHead(5,
               BytesSize(1, tensor.name.size()) + BytesSize(2, tensor.datatype.size()) +
                   BytesSize(3, shape.size()),
               message_);
    AppendBytes(1, tensor.name, message_);
    AppendBytes(2, tensor.datatype, message_);
    AppendBytes(3, shape, message_);
    AppendHead(7, data.size(), &contents_);
    contents_.append(data);
    return true;
  }

  bool Output() {
    static constexpr const char* kFields[] = {"name", "parameters"};
    static constexpr const char* kParameters[] = {"binary_data"};
    Names names(kFields);
    std::string_view name;
    bool is_binary = false, has_own = false;
    const bool is_read = json_.Object([&](std::string_view field) {
      switch (names.Take(field)) {
        case 0:
          return json_.Text(&name);
        case 1: {
          Names parameters(kParameters);
          return json_.Object([&](std::string_view parameter) {
            has_own = parameters.Take(parameter) == 0;
            return has_own && json_.Flag(&is_binary);
          });
        }
        default:
          return false;
      }
    });
    if (!is_read) return false;
    has_own_.push_back(has_own);
    form_.outputs.emplace_back(name, is_binary);
    AppendHead(6, BytesSize(1, name.size()), message_);
    AppendBytes(1, name, message_);
    return true;
  }

  const std::string_view text_;
  JsonReader json_;
  std::string_view binary_;
  std::string* const message_;
  std::string contents_;
  InferForm& form_;
  /// Of each output: whether it says itself how it is wanted.
  std::vector<bool> has_own_;
};

}  // namespace

bool InferForm::IsBinary(std::string_view name) const {
  const auto found = std::find_if(outputs.begin(), outputs.end(),
                                  [name](const auto& output) { return output.first == name; });
  return found == outputs.end() ? is_binary : found->second;
}

bool ReadInferBody(const RestTarget& target, std::string_view json, std::string_view binary,
                   std::string* message, InferForm* form) {
  AppendBytes(1, target.model, message);
  AppendBytes(2, target.version, message);
  return Body(json, binary, message, form).Read();
}

}  // namespace recsys
