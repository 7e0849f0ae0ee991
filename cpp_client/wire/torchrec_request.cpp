#include "wire/torchrec_request.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/text.h"
#include "format/wide.h"
#include "recsys/error.h"
#include "request/input_checks.h"
#include "wire/cursor.h"

namespace recsys {
namespace {

constexpr std::size_t kFloatBytes = sizeof(float);
constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();

// If a message occurs several times, each occurrence adds its fields.
auto FloatFeatures(std::uint32_t number, TorchrecFeatures* features) {
  return Nested(number, [features](Cursor* cursor) {
    ReadFields(cursor, Int(1, &features->num_features), Data(2, &features->values));
  });
}

auto SparseFeatures(std::uint32_t number, TorchrecFeatures* features) {
  return Nested(number, [features](Cursor* cursor) {
    ReadFields(cursor, Int(1, &features->num_features), Data(2, &features->lengths),
               Data(3, &features->values), Data(4, &features->weights));
  });
}

Error Wrong(const std::string& text) { return Error(ErrorKind::kRequest, text); }

std::string Got(std::int64_t count) { return ": got " + std::to_string(count); }

std::string GotBytes(std::string_view data) {
  return ": got " + std::to_string(data.size()) + " bytes, expected ";
}

void Refuse(const std::string& field, const TorchrecFeatures& features) {
  if (features.num_features == 0 && features.values.empty()) return;
  throw Wrong(field + Got(features.num_features) +
              " features, expected none: no model here takes such");
}

Error WrongCount(const std::string& field, std::int64_t got, Wide expected,
                 const std::vector<std::string>& names) {
  return Wrong(field + ".num_features" + Got(got) + ", expected " + WideText(expected) +
               " (in this order: " + Listed(names) + ")");
}

void NameDense(const TorchrecFeatures& features, const std::vector<DenseInput>& inputs,
               OwnedBytes* owned, RawRequest* raw) {
  Wide width = 0;
  for (const DenseInput& input : inputs) width += input.width;
  if (features.num_features != width) {
    std::vector<std::string> names;
    names.reserve(inputs.size());
    for (const DenseInput& input : inputs) {
      names.push_back(input.name + " [" + std::to_string(input.width) + "]");
    }
    throw WrongCount("float_features", features.num_features, width, names);
  }
  const Wide expected = width * raw->num_rows * static_cast<Wide>(kFloatBytes);
  if (static_cast<Wide>(features.values.size()) != expected) {
    throw Wrong("float_features.values" + GotBytes(features.values) + WideText(expected) +
                " (float32 [" + std::to_string(raw->num_rows) + ", " + WideText(width) + "])");
  }
  if (inputs.size() == 1) {
    raw->dense.push_back({inputs[0].name, features.values});
    return;
  }
  // Gathers the columns of each input.
  const auto num_rows = static_cast<std::size_t>(raw->num_rows);
  const std::size_t row_bytes = static_cast<std::size_t>(width) * kFloatBytes;
  char* to = owned->Add(features.values.size());
  std::size_t start = 0;
  for (const DenseInput& input : inputs) {
    const std::size_t num_bytes = static_cast<std::size_t>(input.width) * kFloatBytes;
    raw->dense.push_back({input.name, {to, num_rows * num_bytes}});
    for (std::size_t row = 0; row < num_rows; ++row, to += num_bytes) {
      std::memcpy(to, features.values.data() + row * row_bytes + start, num_bytes);
    }
    start += num_bytes;
  }
}

/// The sparse inputs of one kind, and the features received for them.
class SparseKind {
 public:
  SparseKind(const char* field, const TorchrecFeatures& features, bool weighted,
             const Signature& signature)
      : field_(field), features_(features), weighted_(weighted) {
    for (const SparseInput& input : signature.sparse) {
      if (input.weighted == weighted) inputs_.push_back(&input);
    }
  }

  void Name(OwnedBytes* owned, RawRequest* raw) {
    if (features_.num_features != static_cast<std::int64_t>(inputs_.size())) {
      throw WrongCount(field_, features_.num_features, static_cast<Wide>(inputs_.size()), Names());
    }
    const auto num_rows = static_cast<std::size_t>(raw->num_rows);
    const std::string_view lengths = Lengths(num_rows, owned);
    std::vector<std::size_t> counts(inputs_.size());
    std::size_t num_ids = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (std::size_t row = 0; row < num_rows; ++row) {
        counts[i] += static_cast<std::size_t>(LoadAt<std::int32_t>(lengths, i * num_rows + row));
      }
      num_ids += counts[i];
    }
    const std::string_view values = Values(num_ids, owned);
    CheckWeights(num_ids);
    std::size_t start = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      raw->sparse.push_back(
          {inputs_[i]->name, lengths.substr(4 * i * num_rows, 4 * num_rows),
           values.substr(8 * start, 8 * counts[i]),
           weighted_ ? features_.weights.substr(4 * start, 4 * counts[i]) : std::string_view()});
      start += counts[i];
    }
  }

 private:
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const SparseInput* input : inputs_) names.push_back(input->name);
    return names;
  }

  /// Returns the bytes per number, given that `count` of them fill the data; the smaller size if
  /// empty.
  std::size_t NumberBytes(const std::string& part, std::string_view data, std::size_t count,
                          const std::string& shape) const {
    if (data.size() == 4 * count) return 4;
    if (data.size() == 8 * count) return 8;
    throw Wrong(field_ + part + GotBytes(data) + std::to_string(4 * count) + " (int32 " + shape +
                ") or " + std::to_string(8 * count) + " (int64 " + shape + ")");
  }

  /// int32 [F, B], none negative.
  std::string_view Lengths(std::size_t num_rows, OwnedBytes* owned) const {
    const std::string shape =
        "[" + std::to_string(inputs_.size()) + ", " + std::to_string(num_rows) + "]";
    const std::string_view data = features_.lengths;
    const std::size_t count = inputs_.size() * num_rows;
    const bool is_wide = NumberBytes(".lengths", data, count, shape) == 8;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t length =
          is_wide ? LoadAt<std::int64_t>(data, i) : LoadAt<std::int32_t>(data, i);
      if (length >= 0 && length <= kMaxLength) continue;
      throw Wrong(field_ + ".lengths" + Got(length) + " for " + Repr(inputs_[i / num_rows]->name) +
                  " in row " + std::to_string(i % num_rows) + ", expected 0 to " +
                  std::to_string(kMaxLength));
    }
    return is_wide ? Converted<std::int64_t, std::int32_t>(data, owned) : data;
  }

  /// int64 [N].
  std::string_view Values(std::size_t num_ids, OwnedBytes* owned) const {
    const std::string shape = "[" + std::to_string(num_ids) + "]";
    const bool is_wide = NumberBytes(".values", features_.values, num_ids, shape) == 8;
    return is_wide ? features_.values
                   : Converted<std::int32_t, std::int64_t>(features_.values, owned);
  }

  void CheckWeights(std::size_t num_ids) const {
    const std::size_t expected = num_ids * kFloatBytes;
    if (!weighted_ || inputs_.empty() || features_.weights.size() == expected) return;
    throw Wrong(field_ + ".weights" + GotBytes(features_.weights) + std::to_string(expected) +
                " (float32, one for each of " + std::to_string(num_ids) + " IDs)");
  }

  const std::string field_;
  const TorchrecFeatures& features_;
  const bool weighted_;
  std::vector<const SparseInput*> inputs_;
};

void RefuseIntegers(const std::vector<Output>& outputs) {
  for (const Output& output : outputs) {
    if (output.type == OutputType::kFloat32) continue;
    throw Wrong("outputs: got " + Short(output.name) +
                " of int64, expected float32 alone: this protocol has no other numbers; call "
                "recsys.v1.PredictionService or inference.GRPCInferenceService");
  }
}

}  // namespace

bool ReadTorchrecRequest(std::string_view message, TorchrecRequest* request) {
  *request = {};
  Cursor cursor(message);
  ReadFields(&cursor, Int(1, &request->batch_size), FloatFeatures(2, &request->floats),
             SparseFeatures(3, &request->id_list), SparseFeatures(4, &request->id_score_list),
             FloatFeatures(5, &request->embedding), SparseFeatures(6, &request->unary));
  return cursor.ok();
}

void NameTorchrecInputs(const TorchrecRequest& request, const Signature& signature,
                        const RequestLimits& limits, OwnedBytes* owned, RawRequest* raw) {
  RefuseIntegers(signature.outputs);
  owned->Clear();
  raw->Clear();
  raw->num_rows = request.batch_size;
  if (raw->num_rows < 0) throw Wrong("batch_size" + Got(raw->num_rows) + ", expected 0 or more");
  CheckSizes(limits, raw->num_rows, 0, 0);
  Refuse("embedding_features", request.embedding);
  Refuse("unary_features", request.unary);
  if (!request.id_list.weights.empty()) {
    throw Wrong("id_list_features.weights" + GotBytes(request.id_list.weights) + "none");
  }
  NameDense(request.floats, signature.dense, owned, raw);
  SparseKind("id_list_features", request.id_list, false, signature).Name(owned, raw);
  SparseKind("id_score_list_features", request.id_score_list, true, signature).Name(owned, raw);
}

Message WriteTorchrecResponse(const std::vector<Output>& outputs, const AnswerRows& rows) {
  constexpr std::string_view kDefault = "default";
  Writer writer;
  const auto write = [&](std::string_view name, std::string_view values) {
    // FloatVec: contiguous floats already are a packed field.
    const std::size_t inner = values.empty() ? 0 : DelimitedSize(1, values.size());
    writer.DelimitedHead(1, DelimitedSize(1, name.size()) + DelimitedSize(2, inner));
    writer.Delimited(1, name);
    writer.DelimitedHead(2, inner);
    if (values.empty()) return;
    writer.DelimitedHead(1, values.size());
    writer.Values(values, rows.owner);
  };
  bool has_default = outputs.empty();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    write(outputs[i].name, rows.values[i]);
    has_default |= outputs[i].name == kDefault;
  }
  if (!has_default) write(kDefault, rows.values[0]);
  return writer.Finish();
}

}  // namespace recsys
