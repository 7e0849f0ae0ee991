#include "check/files/plan_file.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "check/files/delta_header.h"
#include "check/json/checked_json.h"
#include "check/requests/wide.h"

namespace recsys {
namespace {

constexpr std::int64_t kPlanFileVersion = 1;
/// No larger header is parsed.
constexpr std::uint64_t kMostHeaderBytes = 1U << 26;
constexpr std::size_t kLengthBytes = 8, kMostDims = 16;
/// Inputs, outputs and constants of a plan, and numbers of a row: bounds against sums that
/// overflow.
constexpr std::int64_t kMostItems = 1 << 16, kMostPerRow = 1 << 24;
constexpr char kAt[] = "operators", kWeightPrefix[] = "weights.";

/// Returns a type of safetensors by its name in manifests.
std::string DtypeOf(const Json& tensor, const std::string& at) {
  static const std::vector<std::string> codes = {"F64", "F32", "F16", "BF16", "I64",
                                                 "I32", "I16", "I8",  "U8"};
  const std::string code = JsonChoice(tensor, "dtype", at, codes);
  const auto found = std::find(codes.begin(), codes.end(), code) - codes.begin();
  return DenseDtypeNames()[static_cast<std::size_t>(found)];
}

FileTensor TensorOf(const Json& data, const std::string& at, std::size_t start, std::size_t size) {
  FileTensor tensor;
  tensor.dtype = DtypeOf(data, at);
  tensor.shape = JsonShape(data, "shape", at);
  const Json& offsets = JsonList(data, "data_offsets", at);
  Wide num_bytes = DtypeBytes(tensor.dtype);
  const Wide most = size;
  // More bytes than the file has are as wrong as any larger number.
  for (const std::int64_t dim : tensor.shape) num_bytes = std::min<Wide>(num_bytes * dim, most + 1);
  const bool are_offsets = offsets.size() == 2 && IsWhole(offsets[0], 0) && IsWhole(offsets[1], 0);
  if (!are_offsets || tensor.shape.size() > kMostDims ||
      offsets[0].get<std::uint64_t>() > size - start ||
      offsets[1].get<std::uint64_t>() > size - start ||
      offsets[0].get<std::uint64_t>() + static_cast<std::uint64_t>(num_bytes) !=
          offsets[1].get<std::uint64_t>()) {
    throw WrongField(at, "data_offsets", StrOf(offsets),
                     "where its bytes begin and end among " + std::to_string(size - start));
  }
  tensor.offset = start + offsets[0].get<std::size_t>();
  tensor.num_bytes = static_cast<std::size_t>(num_bytes);
  return tensor;
}

/// Returns a list of whole numbers from 0 to below `end`.
std::vector<std::int64_t> NumbersOf(const Json& data, const char* key, std::int64_t end) {
  std::vector<std::int64_t> numbers;
  for (const Json& item : JsonList(data, key, kAt)) {
    if (!IsWhole(item, 0) || item.get<std::int64_t>() >= end ||
        static_cast<std::int64_t>(numbers.size()) == kMostItems) {
      throw WrongField(
          kAt, key, StrOf(item),
          "at most " + std::to_string(kMostItems) + " whole numbers below " + std::to_string(end));
    }
    numbers.push_back(item.get<std::int64_t>());
  }
  return numbers;
}

std::int64_t NumberOf(const Json& data, const char* key, std::int64_t least, std::int64_t end) {
  const std::int64_t number = JsonWhole(data, key, kAt, least);
  if (number >= end) {
    throw WrongField(kAt, key, std::to_string(number), "a number below " + std::to_string(end));
  }
  return number;
}

/// Returns the name of a tensor that is there.
std::string NameOf(const Json& data, const char* key, const std::string& at,
                   const std::map<std::string, FileTensor>& tensors) {
  std::string name = JsonText(data, key, at);
  if (tensors.count(name) == 0) {
    throw WrongField(at, key, StrOf(Json(name)), "a tensor of the file");
  }
  return name;
}

PlanConstant ConstantOf(const Json& item, const std::string& at, const PlanFile& file) {
  PlanConstant constant;
  const std::string kind = JsonChoice(item, "kind", at, {"rows", "tensor", "weight", "layer"});
  if (kind == "rows") return constant;
  constant.kind = kind == "tensor"   ? PlanConstant::Kind::kTensor
                  : kind == "weight" ? PlanConstant::Kind::kWeight
                                     : PlanConstant::Kind::kLayer;
  constant.name = NameOf(item, "name", at, kind == "tensor" ? file.tensors : file.weights);
  if (kind == "layer" && !JsonField(item, "bias", at).is_null()) {
    constant.bias = NameOf(item, "bias", at, file.weights);
  }
  return constant;
}

void ReadMetadata(const Json& data, PlanFile* file) {
  if (JsonText(data, "format", kAt) != "recsys-plan") {
    throw WrongField(kAt, "format", StrOf(data["format"]), "recsys-plan");
  }
  CheckFormatVersion(data, kPlanFileVersion, kAt);
  file->num_inputs = NumberOf(data, "num_inputs", 1, kMostItems);
  file->inputs = NumbersOf(data, "inputs", file->num_inputs);
  file->rows_of = NumberOf(data, "rows_of", 0, static_cast<std::int64_t>(file->inputs.size()));
  file->per_row = NumberOf(data, "per_row", 1, kMostPerRow);
  file->widths = NumbersOf(data, "widths", kMostPerRow);
  ForEachItem(data, "outputs", kAt, [&](const std::string& at, const Json& item) {
    const std::int64_t index = JsonWhole(item, "index", at);
    if (index >= static_cast<std::int64_t>(file->widths.size())) {
      throw WrongField(at, "index", std::to_string(index), "one of the widths");
    }
    file->outputs.emplace_back(JsonText(item, "name", at), index);
  });
  ForEachItem(data, "constants", kAt, [&](const std::string& at, const Json& item) {
    file->constants.push_back(ConstantOf(item, at, *file));
  });
}

/// Returns the JSON at the beginning of the file; sets where the tensors' bytes begin.
Json HeaderOf(std::string_view bytes, std::size_t* start) {
  std::uint64_t length = 0;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (bytes.size() < kLengthBytes || length > kMostHeaderBytes ||
      length > bytes.size() - kLengthBytes) {
    throw Error(ErrorKind::kManifest, "operators: got " + std::to_string(bytes.size()) +
                                          " bytes, which do not begin as a file of safetensors");
  }
  *start = kLengthBytes + static_cast<std::size_t>(length);
  return ParseJson(bytes.substr(kLengthBytes, static_cast<std::size_t>(length)));
}

}  // namespace

PlanFile ReadPlanFile(std::string_view bytes) try {
  std::size_t start = 0;
  const Json header = HeaderOf(bytes, &start);
  PlanFile file;
  const std::string prefix = kWeightPrefix;
  const Json& metadata = JsonMapping(header, "__metadata__", kAt);
  bool has_plan = false;
  for (const auto& item : header.items()) {
    const std::string& name = item.key();
    if (name == "__metadata__") continue;
    const FileTensor tensor =
        TensorOf(item.value(), "operators.tensors." + name, start, bytes.size());
    if (name == "plan") {
      file.plan = tensor;
      has_plan = tensor.dtype == "int64" && tensor.shape.size() == 1;
    } else if (name.compare(0, prefix.size(), prefix) == 0) {
      file.weights.emplace(name.substr(prefix.size()), tensor);
    } else {
      file.tensors.emplace(name, tensor);
    }
  }
  if (!has_plan) {
    throw Error(ErrorKind::kManifest, "operators: hold no plan, expected a tensor of int64 [N]");
  }
  ReadMetadata(ParseJson(JsonText(metadata, "recsys", kAt)), &file);
  return file;
} catch (const JsonError& error) {
  throw Error(ErrorKind::kManifest,
              std::string("operators: its header is not readable as JSON: ") + error.what());
}

}  // namespace recsys
