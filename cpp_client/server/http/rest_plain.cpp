#include "server/http/rest_plain.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"
#include "server/http/json_numbers.h"
#include "server/observe/json_text.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxChars = 64;
const JsonValue::Object kNoObject;

using Names = std::vector<std::string>;
/// Of each input: what error texts call it, and its rows.
using RowCounts = std::vector<std::pair<std::string, std::int64_t>>;

Error Wrong(const std::string& text) { return Error(ErrorKind::kRequest, text); }

std::string Shown(std::string_view name) { return Repr(FirstChars(name, kMaxChars)); }

std::string Joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void CheckEntries(const std::string& at, const JsonValue::Object& given, const Names& known) {
  for (const JsonMember& member : given) {
    if (std::find(known.begin(), known.end(), member.name) != known.end()) continue;
    throw Wrong(at + ": got an unknown entry " + Shown(member.name) + ", expected " +
                Joined(known));
  }
}

void CheckNames(const std::string& at, const JsonValue::Object& given, const Names& known) {
  for (const JsonMember& member : given) {
    if (std::find(known.begin(), known.end(), member.name) != known.end()) continue;
    throw Wrong(at + ": got an unknown input " + Shown(member.name) + ", expected " +
                Listed(known));
  }
}

const JsonValue::Object& ObjectAt(const JsonValue::Object& holder, const char* name,
                                  const std::string& at) {
  const auto* const found = FindEntry<JsonValue::Object>(holder, name, at);
  return found == nullptr ? kNoObject : *found;
}

std::int64_t GivenRows(const JsonValue& given, const BatchLimits& limits) {
  if (given.is_null()) return 0;
  if (!given.is_whole()) {
    throw Wrong(std::string("context['num_rows']: got ") + given.kind() +
                ", expected a whole number");
  }
  const auto* const big = given.As<JsonValue::Big>();
  const bool is_negative = big != nullptr ? big->digits[0] == '-' : *given.As<std::int64_t>() < 0;
  if (is_negative)
    throw Wrong("context['num_rows']: got " + given.Short() + ", expected 0 or more");
  const std::int64_t num_rows =
      big != nullptr ? std::numeric_limits<std::int64_t>::max() : *given.As<std::int64_t>();
  limits.CheckRequest(num_rows, 0);
  return num_rows;
}

/// One list of numbers per row; a bare number is a row of one.
struct Lists {
  std::vector<std::int64_t> lengths;
  JsonEntries entries;
};

Lists ListsOf(const JsonValue::List& rows) {
  Lists lists;
  for (const JsonValue& row : rows) {
    if (const auto* const list = row.As<JsonValue::List>()) {
      lists.lengths.push_back(static_cast<std::int64_t>(list->size()));
      for (const JsonValue& entry : *list) lists.entries.push_back(&entry);
    } else {
      lists.lengths.push_back(1);
      lists.entries.push_back(&row);
    }
  }
  return lists;
}

/// int32, one for each row.
std::string_view PackLengths(const std::vector<std::int64_t>& lengths, OwnedBytes* owned) {
  char* const data = owned->Add(lengths.size() * sizeof(std::int32_t));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<std::int32_t>(lengths[i]);
    std::memcpy(data + i * sizeof(length), &length, sizeof(length));
  }
  return {data, lengths.size() * sizeof(std::int32_t)};
}

/// From lists to bytes; what is too large for a request, or for no input of the model, is refused
/// before that.
class Reader {
 public:
  Reader(const Signature& signature, const BatchLimits& limits, OwnedBytes* owned)
      : limits_(limits), owned_(owned) {
    for (const DenseInput& input : signature.dense) dense_names_.push_back(input.name);
    for (const SparseInput& input : signature.sparse) sparse_names_.push_back(input.name);
  }

  /// Dense and sparse inputs, and the rows of each.
  RowCounts ReadInputs(const std::string& prefix, const JsonValue::Object& holder,
                       std::vector<RawDense>* dense, std::vector<RawSparse>* sparse) {
    const std::string at = prefix.empty() ? "body" : prefix.substr(0, prefix.size() - 1);
    const JsonValue::Object& dense_given = ObjectAt(holder, "dense", at);
    const JsonValue::Object& sparse_given = ObjectAt(holder, "sparse", at);
    const JsonValue::Object& weights_given = ObjectAt(holder, "weights", at);
    CheckNames(prefix + "dense", dense_given, dense_names_);
    CheckNames(prefix + "sparse", sparse_given, sparse_names_);
    RowCounts rows;
    dense->clear();
    for (const JsonMember& member : dense_given) {
      const std::string field = prefix + "dense[" + Repr(member.name) + "]";
      const FlatList flat = Flat(field, RowsOf(dense_given, member.name, prefix + "dense"));
      dense->push_back({member.name, Pack(field, flat.entries, NumberType::kFloat32, owned_)});
      rows.emplace_back(field, flat.shape[0]);
    }
    sparse->clear();
    for (const JsonMember& member : sparse_given) {
      const std::string field = prefix + "sparse[" + Repr(member.name) + "]";
      const Lists lists = ListsOf(RowsOf(sparse_given, member.name, prefix + "sparse"));
      RawSparse raw = ReadSparse(field, member.name, lists);
      if (FindMember(weights_given, member.name) != nullptr) {
        raw.weights = ReadWeights(prefix, member.name, weights_given, lists);
      }
      sparse->push_back(raw);
      rows.emplace_back(field, static_cast<std::int64_t>(lists.lengths.size()));
    }
    for (const JsonMember& member : weights_given) {
      if (FindMember(sparse_given, member.name) != nullptr) continue;
      throw Wrong(prefix + "weights: got " + Shown(member.name) +
                  ", expected only names of sparse inputs");
    }
    return rows;
  }

 private:
  const JsonValue::List& RowsOf(const JsonValue::Object& holder, const std::string& name,
                                const std::string& at) const {
    static const JsonValue::List none;
    const auto* const found = FindEntry<JsonValue::List>(holder, name, at);
    const JsonValue::List& rows = found == nullptr ? none : *found;
    limits_.CheckRequest(static_cast<std::int64_t>(rows.size()), 0);
    return rows;
  }

  RawSparse ReadSparse(const std::string& field, const std::string& name, const Lists& lists) {
    num_ids_ += static_cast<std::int64_t>(lists.entries.size());
    limits_.CheckRequest(0, num_ids_);
    RawSparse raw;
    raw.name = name;
    raw.lengths = PackLengths(lists.lengths, owned_);
    raw.values = Pack(field, lists.entries, NumberType::kInt64, owned_);
    return raw;
  }

  std::string_view ReadWeights(const std::string& prefix, const std::string& name,
                               const JsonValue::Object& given, const Lists& ids) const {
    const std::string field = prefix + "weights[" + Repr(name) + "]";
    const Lists lists = ListsOf(RowsOf(given, name, prefix + "weights"));
    if (lists.lengths != ids.lengths) {
      throw Wrong(field + ": got " + ListText(lists.lengths) +
                  " weights per row, expected one per ID: " + ListText(ids.lengths));
    }
    return Pack(field, lists.entries, NumberType::kFloat32, owned_);
  }

  const BatchLimits& limits_;
  OwnedBytes* const owned_;
  Names dense_names_;
  Names sparse_names_;
  std::int64_t num_ids_ = 0;
};

/// Values [size, *dims from `dim` on], nested.
void AppendNested(std::string_view values, std::int64_t size, const Output& output, std::size_t dim,
                  std::string* json) {
  *json += '[';
  const std::size_t step = size > 0 ? values.size() / static_cast<std::size_t>(size) : 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (i > 0) *json += ',';
    const std::string_view one = values.substr(static_cast<std::size_t>(i) * step, step);
    if (dim < output.shape.size()) {
      AppendNested(one, output.shape[dim], output, dim + 1, json);
    } else {
      AppendJsonNumber(static_cast<double>(LoadAt<float>(one, 0)), json);
    }
  }
  *json += ']';
}

}  // namespace

void ReadPlain(const JsonValue::Object& body, const Signature& signature, const BatchLimits& limits,
               OwnedBytes* owned, RawRequest* raw) {
  CheckEntries("body", body, {"dense", "sparse", "weights", "context", "id", "priority"});
  const JsonValue::Object& context = ObjectAt(body, "context", "body");
  CheckEntries("context", context, {"dense", "sparse", "weights", "num_rows"});
  Reader reader(signature, limits, owned);
  RowCounts rows = reader.ReadInputs("", body, &raw->dense, &raw->sparse);
  reader.ReadInputs("context.", context, &raw->context_dense, &raw->context_sparse);
  if (const JsonValue* const given = FindMember(context, "num_rows")) {
    rows.insert(rows.begin(), {"context.num_rows", GivenRows(*given, limits)});
  } else if (rows.empty() && !context.empty()) {
    throw Wrong(
        "context: got every input, expected at least one with a row for each candidate, or "
        "num_rows");
  }
  for (const auto& [name, num_rows] : rows) {
    if (num_rows == rows[0].second) continue;
    throw Wrong(name + ": got " + std::to_string(num_rows) + " rows, expected " +
                std::to_string(rows[0].second) + ", as many as " + rows[0].first + " has");
  }
  // Without any input the request's checks name those that are missing.
  raw->num_rows = rows.empty() ? 0 : rows[0].second;
}

std::string WritePlain(const Hosted& hosted, const Rows& rows) {
  std::string json = "{\"model\":";
  AppendJsonString(hosted.name(), &json);
  json += ",\"version\":";
  AppendJsonString(hosted.version(), &json);
  json += ",\"outputs\":{";
  const std::vector<Output>& outputs = hosted.signature().outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (i > 0) json += ',';
    AppendJsonString(outputs[i].name, &json);
    json += ':';
    AppendNested(rows.values[i], rows.num_rows, outputs[i], 0, &json);
  }
  return json += "}}";
}

}  // namespace recsys
