#include "format/json/signature_json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/text.h"
#include "format/json/checked_json.h"

namespace recsys {
namespace {

const std::vector<std::string>& IdPolicyNames() {
  static const std::vector<std::string> names{"reject", "hash", "zero", "mapped", "fmix64"};
  return names;
}

OutputType OutputTypeOf(const Json& data, const std::string& at) {
  const bool is_integer =
      data.contains("dtype") && JsonChoice(data, "dtype", at, {"float32", "int64"}) == "int64";
  return is_integer ? OutputType::kInt64 : OutputType::kFloat32;
}

std::vector<std::int64_t> BatchDimsOf(const Json& data, const std::string& at,
                                      std::size_t num_sizes, bool by_request) {
  const std::vector<std::int64_t> first{0};
  if (!data.contains("batch_dims")) return first;
  const Json& value = data["batch_dims"];
  const auto is_whole = [](const Json& dim) { return dim.is_number_integer(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_whole)) {
    throw WrongField(at, "batch_dims", StrOf(value), "a list of whole numbers");
  }
  const std::size_t num_dims = num_sizes + value.size();
  std::vector<std::int64_t> dims;
  bool is_ascending = num_dims > 0;
  for (const Json& dim : value) {
    is_ascending = is_ascending && IsWhole(dim, dims.empty() ? 0 : dims.back() + 1) &&
                   dim.get<std::uint64_t>() < num_dims;
    if (!is_ascending) break;
    dims.push_back(dim.get<std::int64_t>());
  }
  if (!is_ascending) {
    throw WrongField(at, "batch_dims", StrOf(value),
                     "different dimensions of " + std::to_string(num_dims) + ", ascending");
  }
  if (dims != first && !by_request) {
    throw WrongField(at, "batch_dims", StrOf(value),
                     "[0], because a batch holds rows of any requests");
  }
  return dims;
}

IdPolicy IdPolicyOf(const std::string& name) {
  const auto& names = IdPolicyNames();
  return static_cast<IdPolicy>(std::find(names.begin(), names.end(), name) - names.begin());
}

SparseInput SparseFromJson(const Json& data, const std::string& at) {
  SparseInput input;
  input.name = JsonText(data, "name", at);
  input.pooling = JsonChoice(data, "pooling", at, {"sum", "mean", "none"});
  input.weighted = JsonFlag(data, "weighted", at);
  if (data.contains("strings")) input.strings = JsonChoice(data, "strings", at, {"xxh64"});
  if (data.contains("num_ids")) input.num_ids = JsonWhole(data, "num_ids", at);
  if (data.contains("fixed")) input.fixed = JsonFlag(data, "fixed", at);
  if (data.contains("max_ids")) input.max_ids = JsonWhole(data, "max_ids", at);
  if (data.contains("same_lengths_as")) {
    input.same_lengths_as = JsonText(data, "same_lengths_as", at);
  }
  if (data.contains("separator")) input.separator = JsonText(data, "separator", at);
  ForEachItem(data, "tables", at, [&](const std::string& to, const Json& table) {
    input.tables.push_back({JsonText(table, "name", to), JsonCount(table, "num_embeddings", to),
                            IdPolicyOf(JsonChoice(table, "id_policy", to, IdPolicyNames()))});
  });
  return input;
}

std::vector<std::string> ColumnsFromJson(const Json& data, const std::string& at,
                                         std::int64_t width) {
  std::vector<std::string> names;
  if (!data.contains("columns")) return names;
  ForEachItem(data, "columns", at, [&](const std::string& to, const Json& name) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
      throw Error(ErrorKind::kManifest,
                  to + ": got " + Repr(StrOf(name)) + ", expected a non-empty text");
    }
    names.push_back(name.get<std::string>());
  });
  if (static_cast<std::int64_t>(names.size()) != width || !Doubled(names).empty()) {
    throw Error(ErrorKind::kManifest, at + ".columns: got " + Listed(names) +
                                          ", expected as many different names as the width, " +
                                          std::to_string(width));
  }
  return names;
}

/// Checks that inputs have the lengths of earlier ones, which have none of others.
void CheckSameLengths(const std::vector<SparseInput>& sparse) {
  std::vector<std::string> free;
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    const std::string& other = sparse[i].same_lengths_as;
    const std::string at = "signature.sparse[" + std::to_string(i) + "]";
    if (sparse[i].fixed && !sparse[i].num_ids) {
      throw WrongField(at, "fixed", "True", "num_ids beside it");
    }
    if (other.empty()) {
      free.push_back(sparse[i].name);
    } else if (std::find(free.begin(), free.end(), other) == free.end()) {
      throw WrongField(at, "same_lengths_as", other,
                       "one of the inputs before it: " + Listed(free));
    } else {
      const auto found = std::find_if(sparse.begin(), sparse.end(), [&](const SparseInput& input) {
        return input.name == other;
      });
      if (sparse[i].num_ids == found->num_ids) continue;
      throw WrongField(at, "num_ids",
                       sparse[i].num_ids ? std::to_string(*sparse[i].num_ids) : "None",
                       "that of " + Repr(other));
    }
  }
}

void CheckUnique(const char* what, const std::vector<std::string>& names) {
  if (Doubled(names).empty()) return;
  throw Error(ErrorKind::kManifest,
              std::string("signature: ") + what + " names are not unique: " + Listed(names));
}

std::vector<std::string> ContextFromJson(const Json& data, const std::vector<std::string>& inputs) {
  std::vector<std::string> names;
  if (!data.contains("context")) return names;
  const std::set<std::string> known(inputs.begin(), inputs.end());
  ForEachItem(data, "context", "signature", [&](const std::string& at, const Json& name) {
    if (!name.is_string() || known.count(name.get<std::string>()) == 0) {
      throw Error(ErrorKind::kManifest, at + ": got " + Repr(StrOf(name)) +
                                            ", expected a dense or sparse input, one of " +
                                            Listed({known.begin(), known.end()}));
    }
    names.push_back(name.get<std::string>());
  });
  if (!Doubled(names).empty()) {
    throw Error(ErrorKind::kManifest, "signature.context: names are not unique: " + Listed(names));
  }
  return names;
}

}  // namespace

std::string IdPolicyName(IdPolicy policy) {
  return IdPolicyNames()[static_cast<std::size_t>(policy)];
}

Signature SignatureFromJson(const Json& data) {
  Signature signature;
  std::vector<std::string> inputs, outputs;
  ForEachItem(data, "dense", "signature", [&](const std::string& at, const Json& item) {
    DenseInput input{JsonText(item, "name", at), JsonCount(item, "width", at)};
    input.missing = item.contains("missing") && JsonFlag(item, "missing", at);
    input.columns = ColumnsFromJson(item, at, input.width);
    inputs.push_back(input.name);
    signature.dense.push_back(std::move(input));
  });
  ForEachItem(data, "sparse", "signature", [&](const std::string& at, const Json& item) {
    signature.sparse.push_back(SparseFromJson(item, at));
    inputs.push_back(signature.sparse.back().name);
  });
  signature.by_request = data.contains("batch") &&
                         JsonChoice(data, "batch", "signature", {"rows", "request"}) == "request";
  ForEachItem(data, "outputs", "signature", [&](const std::string& at, const Json& item) {
    signature.outputs.push_back(
        {JsonText(item, "name", at), JsonShape(item, "shape", at), OutputTypeOf(item, at), {}});
    Output& output = signature.outputs.back();
    output.batch_dims = BatchDimsOf(item, at, output.shape.size(), signature.by_request);
    outputs.push_back(signature.outputs.back().name);
  });
  CheckUnique("dense and sparse", inputs);
  CheckUnique("outputs", outputs);
  if (outputs.empty() || inputs.empty()) {
    throw Error(ErrorKind::kManifest,
                "signature: got no inputs or no outputs, expected at least one of each");
  }
  CheckSameLengths(signature.sparse);
  signature.context = ContextFromJson(data, inputs);
  return signature;
}

Json SignatureToJson(const Signature& signature) {
  Json dense = Json::array(), sparse = Json::array(), outputs = Json::array();
  for (const DenseInput& input : signature.dense) {
    dense.push_back({{"name", input.name}, {"width", input.width}});
    if (input.missing) dense.back()["missing"] = true;
    if (!input.columns.empty()) dense.back()["columns"] = input.columns;
  }
  for (const SparseInput& input : signature.sparse) {
    Json tables = Json::array();
    for (const TableUse& use : input.tables) {
      tables.push_back({{"name", use.name},
                        {"num_embeddings", use.num_embeddings},
                        {"id_policy", IdPolicyName(use.id_policy)}});
    }
    sparse.push_back({{"name", input.name},
                      {"pooling", input.pooling},
                      {"weighted", input.weighted},
                      {"tables", std::move(tables)}});
    if (!input.strings.empty()) sparse.back()["strings"] = input.strings;
    if (input.num_ids) sparse.back()["num_ids"] = *input.num_ids;
    if (input.fixed) sparse.back()["fixed"] = true;
    if (input.max_ids) sparse.back()["max_ids"] = *input.max_ids;
    if (!input.same_lengths_as.empty()) {
      sparse.back()["same_lengths_as"] = input.same_lengths_as;
    }
    if (!input.separator.empty()) sparse.back()["separator"] = input.separator;
  }
  for (const Output& output : signature.outputs) {
    outputs.push_back({{"name", output.name}, {"shape", output.shape}});
    if (output.type == OutputType::kInt64) outputs.back()["dtype"] = "int64";
    if (output.batch_dims != std::vector<std::int64_t>{0}) {
      outputs.back()["batch_dims"] = output.batch_dims;
    }
  }
  Json data = {
      {"dense", std::move(dense)}, {"sparse", std::move(sparse)}, {"outputs", std::move(outputs)}};
  if (!signature.context.empty()) data["context"] = signature.context;
  if (signature.by_request) data["batch"] = "request";
  return data;
}

}  // namespace recsys
