#include "wire/infer/infer_tensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "format/wide.h"
#include "recsys/error.h"
#include "request/input_checks.h"
#include "wire/texts.h"

namespace recsys {
namespace {

/// Finds a request's tensors by name. Not thread-safe; the tensors must outlive it.
class TensorIndex {
 public:
  /// Throws Error if two tensors have the same name.
  explicit TensorIndex(const std::vector<InferTensor>& tensors);

  /// Returns the tensor of that name and removes it from the index; null if there is none.
  const InferTensor* Take(std::string_view name, std::string_view suffix = {});
  /// Number of tensors not yet taken.
  std::size_t num_left() const { return num_left_; }

 private:
  std::size_t FirstSlot(std::string_view name, std::string_view suffix) const;

  const std::vector<InferTensor>& tensors_;
  /// Open addressing: indexes of tensors from 1, 0 for an empty slot, kTaken for a taken tensor.
  std::vector<std::uint32_t> slots_;
  std::size_t num_left_;
};

constexpr std::uint32_t kTaken = 0xFFFFFFFF;

bool IsCalled(const InferTensor& tensor, std::string_view name, std::string_view suffix) {
  return tensor.name.size() == name.size() + suffix.size() &&
         tensor.name.substr(0, name.size()) == name && tensor.name.substr(name.size()) == suffix;
}

/// Returns the most frequent name; among equally frequent ones, the first.
std::string_view MostCommon(const std::vector<InferTensor>& tensors) {
  std::map<std::string_view, std::size_t> counts;
  for (const InferTensor& tensor : tensors) ++counts[tensor.name];
  std::string_view most = tensors.front().name;
  for (const InferTensor& tensor : tensors) {
    if (counts[tensor.name] > counts[most]) most = tensor.name;
  }
  return most;
}

// FNV-1a (Fowler, Noll, Vo).
std::uint64_t Hash(std::uint64_t seed, std::string_view text) {
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return seed;
}

TensorIndex::TensorIndex(const std::vector<InferTensor>& tensors)
    : tensors_(tensors), num_left_(tensors.size()) {
  std::size_t num_slots = 2;
  while (num_slots < 2 * tensors.size()) num_slots *= 2;
  slots_.resize(num_slots);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::size_t slot = FirstSlot(tensors[i].name, {});
    for (; slots_[slot] != 0; slot = (slot + 1) & (num_slots - 1)) {
      if (tensors[slots_[slot] - 1].name != tensors[i].name) continue;
      throw Error(ErrorKind::kRequest, "inputs: got " + Repr(FirstChars(MostCommon(tensors), 64)) +
                                           " more than once, expected each tensor once");
    }
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

const InferTensor* TensorIndex::Take(std::string_view name, std::string_view suffix) {
  for (std::size_t slot = FirstSlot(name, suffix); slots_[slot] != 0;
       slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot] == kTaken) continue;
    const InferTensor& tensor = tensors_[slots_[slot] - 1];
    if (!IsCalled(tensor, name, suffix)) continue;
    slots_[slot] = kTaken;
    --num_left_;
    return &tensor;
  }
  return nullptr;
}

std::size_t TensorIndex::FirstSlot(std::string_view name, std::string_view suffix) const {
  const std::uint64_t hash = Hash(Hash(0xCBF29CE484222325, name), suffix);
  return static_cast<std::size_t>(hash ^ hash >> 32) & (slots_.size() - 1);
}

/// The model inputs named by a request's `context` parameter.
class ContextNames {
 public:
  /// `text`: comma-separated names; white space around them and empty names are ignored. The text
  /// is not kept, however long it is. Throws Error if a name is not an input's.
  ContextNames(std::string_view text, const Signature& signature);

  bool any() const { return !named_.empty(); }
  /// By the input's number: dense inputs first, then sparse ones.
  bool Has(std::size_t input) const { return !named_.empty() && named_[input]; }

 private:
  /// Empty if no input is named.
  std::vector<bool> named_;
};

std::string_view Stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

ContextNames::ContextNames(std::string_view text, const Signature& signature) {
  if (text.empty()) return;
  std::unordered_map<std::string_view, std::size_t> known;
  for (const DenseInput& input : signature.dense) known.emplace(input.name, known.size());
  for (const SparseInput& input : signature.sparse) known.emplace(input.name, known.size());
  std::optional<std::string_view> unknown;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string_view name = Stripped(text.substr(start, end - start));
    start = end + 1;
    if (name.empty()) continue;
    const auto found = known.find(name);
    if (found == known.end()) {
      if (!unknown || name < *unknown) unknown = name;
    } else {
      named_.resize(signature.dense.size() + signature.sparse.size());
      named_[found->second] = true;
    }
  }
  if (!unknown) return;
  std::vector<std::string> names;
  for (const DenseInput& input : signature.dense) names.push_back(input.name);
  for (const SparseInput& input : signature.sparse) names.push_back(input.name);
  throw Error(ErrorKind::kRequest, "parameters['context']: got an unknown input " +
                                       Repr(FirstChars(*unknown, 64)) + ", expected " +
                                       Listed(names));
}

constexpr char kFloat[] = "FP32";
constexpr char kId[] = "INT64";
constexpr char kLength[] = "INT32";
constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();

Error Wrong(const std::string& text) { return Error(ErrorKind::kRequest, text); }

std::string ListOf(const InferShape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.num_dims, shape.sizes.size()); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape.sizes[i]);
  }
  return text + "]";
}

Error WrongShape(const InferTensor& tensor, const std::string& expected) {
  return Wrong(TensorField(tensor.name) + ".shape: got " + ListOf(tensor.shape) + ", expected " +
               expected);
}

bool IsSameShape(const InferShape& a, const InferShape& b) {
  return a.num_dims == b.num_dims &&
         std::equal(a.sizes.begin(), a.sizes.begin() + std::min(a.num_dims, a.sizes.size()),
                    b.sizes.begin());
}

/// Converts a count of numbers to a count of bytes, which may exceed even Wide.
std::string BytesText(Wide count, std::size_t number_bytes) {
  std::string digits = WideText(count);
  for (; number_bytes > 1; number_bytes /= 2) {
    int carry = 0;
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
      const int doubled = 2 * (*digit - '0') + carry;
      *digit = static_cast<char>('0' + doubled % 10);
      carry = doubled / 10;
    }
    if (carry > 0) digits.insert(0, 1, '1');
  }
  return digits;
}

/// Returns the number of elements of a shape that has one or two sizes, none negative.
Wide CountOf(const InferTensor& tensor) {
  const std::int64_t* sizes = tensor.shape.sizes.data();
  const Wide first = sizes[0];
  const Wide second = tensor.shape.num_dims == 2 ? sizes[1] : 1;
  if (first < 0 || second < 0) throw WrongShape(tensor, "sizes of 0 or more");
  return first * second;
}

/// Checks that the data's size matches the type and the shape.
void CheckSize(const InferTensor& tensor) {
  const Wide count = CountOf(tensor);
  const std::size_t number_bytes = DatatypeBytes(tensor.datatype);
  const bool is_whole = tensor.data.size() % number_bytes == 0;
  if (is_whole && count == static_cast<Wide>(tensor.data.size() / number_bytes)) return;
  throw Wrong(TensorField(tensor.name) + ": got " + std::to_string(tensor.data.size()) +
              " bytes, expected " + BytesText(count, number_bytes) + " (" +
              std::string(tensor.datatype) + " " + ListOf(tensor.shape) + ")");
}

Error WrongType(const InferTensor& tensor, const std::string& expected) {
  return Wrong(TensorField(tensor.name) + ".datatype: got " +
               Repr(FirstChars(tensor.datatype, 64)) + ", expected " + expected);
}

void CheckFloats(const InferTensor& tensor) {
  if (tensor.datatype != kFloat) throw WrongType(tensor, kFloat);
  CheckSize(tensor);
}

void CheckWholeNumbers(const InferTensor& tensor) {
  if (tensor.datatype != kId && tensor.datatype != kLength) {
    throw WrongType(tensor, std::string(kId) + " or " + kLength);
  }
  CheckSize(tensor);
}

/// Returns int32 [B]; rejects what int32 cannot hold, and leaves the rest to the request's checks.
std::string_view LengthsOf(const InferTensor& tensor, OwnedBytes* owned) {
  if (tensor.shape.num_dims != 1) throw WrongShape(tensor, "[-1]");
  CheckWholeNumbers(tensor);
  if (tensor.datatype == kLength) return tensor.data;
  for (std::size_t row = 0; row < tensor.data.size() / sizeof(std::int64_t); ++row) {
    const auto length = LoadAt<std::int64_t>(tensor.data, row);
    if (length >= 0 && length <= kMaxLength) continue;
    throw Wrong(TensorField(tensor.name) + ": got " + std::to_string(length) + " in row " +
                std::to_string(row) + ", expected 0 to " + std::to_string(kMaxLength));
  }
  return Converted<std::int64_t, std::int32_t>(tensor.data, owned);
}

/// Returns int32 [B], all of them L.
std::string_view EqualLengths(const InferTensor& tensor, const RequestLimits& limits,
                              OwnedBytes* owned) {
  const InferShape& shape = tensor.shape;
  CheckSizes(limits, shape.sizes[0], 0, 0);
  const auto num_rows = static_cast<std::size_t>(shape.sizes[0]);
  const auto length = static_cast<std::int32_t>(shape.num_dims == 2 ? shape.sizes[1] : 1);
  char* const made = owned->Add(num_rows * sizeof length);
  for (std::size_t row = 0; row < num_rows; ++row) {
    std::memcpy(made + row * sizeof length, &length, sizeof length);
  }
  return {made, num_rows * sizeof length};
}

/// Returns the texts of a BYTES tensor, as many as its shape says.
RawTexts TextsOf(const InferTensor& tensor, const RequestLimits& limits) {
  const Wide count_of_shape = CountOf(tensor);
  CheckSizes(limits, 0, count_of_shape, 0);
  const auto expected = static_cast<std::int64_t>(count_of_shape);
  RawTexts texts = tensor.texts;
  if (texts.num_texts == 0) {
    const std::optional<std::int64_t> count =
        CountPrefixed(tensor.data, static_cast<std::uint64_t>(expected) + 1);
    if (!count) {
      throw Wrong(TensorField(tensor.name) + ": got " + std::to_string(tensor.data.size()) +
                  " bytes that end within a text, expected each text after its length (4 bytes, "
                  "little-endian)");
    }
    texts = {tensor.data, *count, &TakePrefixed};
  }
  if (texts.num_texts != expected) {
    const std::string got = texts.num_texts > expected ? "more than " + std::to_string(expected)
                                                       : std::to_string(texts.num_texts);
    throw Wrong(TensorField(tensor.name) + ": got " + got + " texts, expected " +
                std::to_string(expected) + " (" + kTextType + " " + ListOf(tensor.shape) + ")");
  }
  return texts;
}

/// Sets the IDs or the texts of a sparse input.
void SetIds(const InferTensor& tensor, const RequestLimits& limits, OwnedBytes* owned,
            RawSparse* raw) {
  if (tensor.datatype == kTextType) {
    raw->texts = TextsOf(tensor, limits);
    return;
  }
  if (tensor.datatype != kId && tensor.datatype != kLength) {
    throw WrongType(tensor, std::string(kId) + " or " + kLength + " or " + kTextType);
  }
  CheckSize(tensor);
  raw->values = tensor.datatype == kId ? tensor.data
                                       : Converted<std::int32_t, std::int64_t>(tensor.data, owned);
}

/// Assembles one request.
class Assembly {
 public:
  Assembly(const std::vector<InferTensor>& tensors, const Signature& signature,
           const RequestLimits& limits, OwnedBytes* owned)
      : tensors_(tensors), signature_(signature), limits_(limits), owned_(owned), given_(tensors) {}

  void Run(std::string_view context, RawRequest* raw) {
    rows_.reserve(signature_.dense.size() + signature_.sparse.size());
    for (const DenseInput& input : signature_.dense) raw->dense.push_back(Dense(input));
    for (const SparseInput& input : signature_.sparse) raw->sparse.push_back(Sparse(input));
    if (given_.num_left() > 0) RefuseUnknown();
    const ContextNames shared(context, signature_);
    raw->num_rows = NumRows(shared);
    if (shared.any()) Divide(shared, raw);
  }

 private:
  RawDense Dense(const DenseInput& input) {
    const InferTensor* tensor = given_.Take(input.name);
    if (tensor == nullptr) throw Missing(input.name);
    const InferShape& shape = tensor->shape;
    const bool is_flat = input.width == 1 && shape.num_dims == 1;
    if (!is_flat && (shape.num_dims != 2 || shape.sizes[1] != input.width)) {
      throw WrongShape(*tensor, "[-1, " + std::to_string(input.width) + "]");
    }
    CheckFloats(*tensor);
    rows_.push_back(shape.sizes[0]);
    return {tensor->name, tensor->data};
  }

  RawSparse Sparse(const SparseInput& input) {
    const std::string& name = input.name;
    const InferTensor* whole = given_.Take(name);
    const InferTensor* values = given_.Take(name, ".values");
    const InferTensor* lengths = given_.Take(name, ".lengths");
    const InferTensor* weights = given_.Take(name, ".weights");
    if (whole != nullptr && (values != nullptr || lengths != nullptr)) {
      throw Wrong("inputs: got " + Repr(name) + " whole and in parts, expected one of the two");
    }
    const InferTensor* ids = whole == nullptr ? values : whole;
    if (ids == nullptr) throw Missing(name + ".values");
    if (whole == nullptr && lengths == nullptr) throw Missing(name + ".lengths");
    if (weights == nullptr && input.weighted) throw Missing(name + ".weights");
    RawSparse raw;
    raw.name = ids->name.substr(0, name.size());
    if (whole == nullptr) {
      raw.lengths = LengthsOf(*lengths, owned_);
      if (ids->shape.num_dims != 1) throw WrongShape(*ids, "[-1]");
      SetIds(*ids, limits_, owned_, &raw);
    } else {
      if (ids->shape.num_dims != 1 && ids->shape.num_dims != 2) {
        throw WrongShape(*ids, "[-1, -1] or [-1]");
      }
      // A tensor without IDs may claim any number of rows; with IDs, the data's size bounds it.
      SetIds(*ids, limits_, owned_, &raw);
      raw.lengths = EqualLengths(*whole, limits_, owned_);
    }
    rows_.push_back((whole == nullptr ? lengths : whole)->shape.sizes[0]);
    if (weights == nullptr) return raw;
    if (!IsSameShape(weights->shape, ids->shape)) {
      throw WrongShape(*weights, ListOf(ids->shape) + ", that of the IDs");
    }
    CheckFloats(*weights);
    raw.weights = weights->data;
    return raw;
  }

  /// Returns the error for a missing tensor, unless an unknown name is refused: it may be a
  /// misspelling.
  Error Missing(const std::string& name) {
    RefuseUnknown();
    return Wrong("inputs: missing " + Repr(name) + ", expected each of the model's inputs once");
  }

  /// Refuses the first tensor that belongs to no input, if there is one.
  void RefuseUnknown() {
    std::set<std::string> known;
    for (const DenseInput& input : signature_.dense) known.insert(input.name);
    for (const SparseInput& input : signature_.sparse) {
      known.insert(input.name);
      for (const char* part : {".values", ".lengths", ".weights"}) known.insert(input.name + part);
    }
    for (const InferTensor& tensor : tensors_) {
      if (known.count(std::string(tensor.name)) > 0) continue;
      std::vector<std::string> expected;
      for (TensorSpec& spec : InputSpecs(signature_)) expected.push_back(std::move(spec.name));
      throw Wrong("inputs: got an unknown tensor " + Repr(FirstChars(tensor.name, 64)) +
                  ", expected " + Listed(expected));
    }
  }

  /// Returns B, which must be the same in all inputs except those of the context, which have one
  /// row.
  std::int64_t NumRows(const ContextNames& shared) const {
    std::size_t first = 0;
    while (first < rows_.size() && shared.Has(first)) ++first;
    if (first == rows_.size()) {
      throw Wrong(
          "parameters['context']: got every input, expected at least one with all the rows");
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i] == (shared.Has(i) ? 1 : rows_[first])) continue;
      const std::string got =
          "inputs[" + Repr(NameOf(i)) + "]: got " + std::to_string(rows_[i]) + " rows, expected ";
      if (shared.Has(i)) throw Wrong(got + "1: it is of the context");
      throw Wrong(got + std::to_string(rows_[first]) + ", as many as " + Repr(NameOf(first)) +
                  " has");
    }
    return rows_[first];
  }

  const std::string& NameOf(std::size_t input) const {
    const std::size_t num_dense = signature_.dense.size();
    return input < num_dense ? signature_.dense[input].name
                             : signature_.sparse[input - num_dense].name;
  }

  /// Moves the shared inputs to the context.
  template <typename Input>
  static void Move(const ContextNames& shared, std::size_t first, std::vector<Input>* inputs,
                   std::vector<Input>* context) {
    std::size_t num_left = 0;
    for (std::size_t i = 0; i < inputs->size(); ++i) {
      const Input input = (*inputs)[i];
      if (shared.Has(first + i)) {
        context->push_back(input);
      } else {
        (*inputs)[num_left++] = input;
      }
    }
    inputs->resize(num_left);
  }

  void Divide(const ContextNames& shared, RawRequest* raw) const {
    Move(shared, 0, &raw->dense, &raw->context_dense);
    Move(shared, signature_.dense.size(), &raw->sparse, &raw->context_sparse);
  }

  const std::vector<InferTensor>& tensors_;
  const Signature& signature_;
  const RequestLimits& limits_;
  OwnedBytes* const owned_;
  TensorIndex given_;
  /// Rows of each input, dense inputs first.
  std::vector<std::int64_t> rows_;
};

}  // namespace

void ReadInferTensors(const std::vector<InferTensor>& tensors, std::string_view context,
                      const Signature& signature, const RequestLimits& limits, OwnedBytes* owned,
                      RawRequest* raw) {
  raw->Clear();
  Assembly(tensors, signature, limits, owned).Run(context, raw);
}

}  // namespace recsys
