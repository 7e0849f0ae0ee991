#include "format/program_file.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "format/delta_header.h"
#include "format/json/checked_json.h"
#include "format/wide.h"

namespace recsys {
namespace {

constexpr std::int64_t kProgramFileVersion = 4;
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
  const Wide num_bytes = TensorBytes(tensor.dtype, tensor.shape);
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

/// Names and sizes of tensors by where they begin.
using Places = std::multimap<std::size_t, std::pair<std::string, std::size_t>>;

/// Throws where tensors overlap, or where bytes belong to none.
void CheckCover(const Places& places, std::size_t start, std::size_t end) {
  std::size_t at = start;
  for (const auto& [offset, tensor] : places) {
    if (offset != at) {
      throw WrongField("operators.tensors." + tensor.first, "data_offsets",
                       std::to_string(offset - start) + " as the first",
                       std::to_string(at - start) + ", where the tensor before it ends");
    }
    at += tensor.second;
  }
  if (at != end) {
    throw Error(ErrorKind::kManifest,
                "operators.tensors: got " + std::to_string(end - at) + " bytes of no tensor");
  }
}

/// Returns a list of whole numbers from 0 to below `end`.
std::vector<std::int64_t> NumbersOf(const Json& data, const char* key, const std::string& at,
                                    std::int64_t end) {
  std::vector<std::int64_t> numbers;
  for (const Json& item : JsonList(data, key, at)) {
    if (!IsWhole(item, 0) || item.get<std::int64_t>() >= end ||
        static_cast<std::int64_t>(numbers.size()) == kMostItems) {
      throw WrongField(
          at, key, StrOf(item),
          "at most " + std::to_string(kMostItems) + " whole numbers below " + std::to_string(end));
    }
    numbers.push_back(item.get<std::int64_t>());
  }
  return numbers;
}

std::int64_t NumberOf(const Json& data, const char* key, const std::string& at, std::int64_t least,
                      std::int64_t end) {
  const std::int64_t number = JsonWhole(data, key, at, least);
  if (number >= end) {
    throw WrongField(at, key, std::to_string(number), "a number below " + std::to_string(end));
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

ProgramConstant ConstantOf(const Json& item, const std::string& at, const ProgramFile& file) {
  ProgramConstant constant;
  const std::string kind = JsonChoice(item, "kind", at, {"rows", "tensor", "weight", "layer"});
  if (kind == "rows") return constant;
  constant.kind = kind == "tensor"   ? ProgramConstant::Kind::kTensor
                  : kind == "weight" ? ProgramConstant::Kind::kWeight
                                     : ProgramConstant::Kind::kLayer;
  constant.name = NameOf(item, "name", at, kind == "tensor" ? file.tensors : file.weights);
  if (kind == "layer" && !JsonField(item, "bias", at).is_null()) {
    constant.bias = NameOf(item, "bias", at, file.weights);
  }
  if (kind == "layer" && item.find("columns") != item.end()) {
    constant.columns = NameOf(item, "columns", at, file.tensors);
    const FileTensor& columns = file.tensors.at(constant.columns);
    if (columns.dtype != "int64" || columns.shape.size() != 2 || columns.shape[1] != 4) {
      throw WrongField(at, "columns", StrOf(Json(constant.columns)), "a tensor of int64 [R, 4]");
    }
  }
  return constant;
}

FileCheck CheckOf(const Json& item, const std::string& at, const ProgramFile& file) {
  FileCheck check;
  check.input = NumberOf(item, "input", at, 0, file.num_inputs);
  check.of = NumberOf(item, "of", at, 0, file.num_inputs);
  check.per_row = NumberOf(item, "per_row", at, 1, kMostPerRow);
  check.times = NumberOf(item, "times", at, 1, kMostPerRow);
  check.width = NumberOf(item, "width", at, 0, kMostPerRow);
  return check;
}

/// Returns the name of a list of numbers of a type.
std::string ListOf(const Json& item, const char* key, const std::string& dtype,
                   const std::string& at, const ProgramFile& file) {
  std::string name = NameOf(item, key, at, file.tensors);
  const FileTensor& tensor = file.tensors.at(name);
  if (tensor.dtype != dtype || tensor.shape.size() != 1) {
    throw WrongField(at, key, StrOf(Json(name)), "a tensor of " + dtype + " [N]");
  }
  return name;
}

/// Returns pairs of whole numbers.
std::vector<std::vector<std::int64_t>> PairsOf(const Json& data, const char* key,
                                               const std::string& at) {
  std::vector<std::vector<std::int64_t>> pairs;
  for (const Json& item : JsonList(data, key, at)) {
    const bool is_pair = item.is_array() && item.size() == 2 && IsWhole(item[0], 0) &&
                         IsWhole(item[1], 0) &&
                         static_cast<std::int64_t>(pairs.size()) < kMostItems;
    if (!is_pair) throw WrongField(at, key, StrOf(item), "a list of pairs of whole numbers");
    pairs.push_back({item[0].get<std::int64_t>(), item[1].get<std::int64_t>()});
  }
  return pairs;
}

void ReadPlanStep(const Json& item, const std::string& at, const ProgramFile& file,
                  std::int64_t num_places, FileStep* step) {
  step->name = ListOf(item, "plan", "int64", at, file);
  step->inputs = NumbersOf(item, "inputs", at, num_places);
  const auto num_inputs = static_cast<std::int64_t>(step->inputs.size());
  step->rows_of = NumberOf(item, "rows_of", at, 0, num_inputs);
  step->per_row = NumberOf(item, "per_row", at, 1, kMostPerRow);
  step->widths = NumbersOf(item, "widths", at, kMostPerRow);
  ForEachItem(item, "constants", at, [&](const std::string& to, const Json& constant) {
    step->constants.push_back(ConstantOf(constant, to, file));
  });
  if (item.find("growing") == item.end()) return;
  const Json& growing = JsonField(item, "growing", at);
  const std::string within = at + ".growing";
  step->growing.feature = NumberOf(growing, "feature", within, 0, kMostItems);
  step->growing.size = NumberOf(growing, "size", within, 1, kMostItems);
  step->growing.every = NumberOf(growing, "every", within, 1, kMostItems);
  step->growing.buffers = PairsOf(growing, "buffers", within);
  step->growing.steps = PairsOf(growing, "steps", within);
}

void ReadRegionStep(const Json& item, const std::string& at, const ProgramFile& file,
                    std::int64_t num_places, FileStep* step) {
  step->name = ListOf(item, "script", "uint8", at, file);
  step->inputs = NumbersOf(item, "inputs", at, num_places);
  step->num_outputs = NumberOf(item, "num_outputs", at, 1, kMostItems);
  for (const auto& weight : JsonMapping(item, "weights", at).items()) {
    const Json& path = weight.value();
    if (!path.is_string()) throw WrongField(at, "weights", StrOf(path), "paths of dense weights");
    step->weights.emplace(weight.key(), path.get<std::string>());
  }
}

/// `num_places`: those before the step.
FileStep StepOf(const Json& item, const std::string& at, const ProgramFile& file,
                std::int64_t num_places) {
  FileStep step;
  const std::string kind = JsonChoice(item, "kind", at, {"plan", "gather", "region"});
  if (kind == "plan") {
    ReadPlanStep(item, at, file, num_places, &step);
  } else if (kind == "region") {
    step.kind = FileStep::Kind::kRegion;
    ReadRegionStep(item, at, file, num_places, &step);
  } else {
    step.kind = FileStep::Kind::kGather;
    step.rows = NumberOf(item, "rows", at, 0, num_places);
    step.index = NumberOf(item, "index", at, 0, num_places);
  }
  return step;
}

/// Throws where what deltas may change is not what steps and regions take.
void CheckDense(const ProgramFile& file) {
  const std::string at = std::string(kAt) + ".dense";
  std::map<std::string, const DenseWeight*> dense;
  for (const DenseWeight& weight : file.dense) dense.emplace(weight.path, &weight);
  for (const auto& [path, weight] : file.weights) {
    const auto found = dense.find(path);
    if (found == dense.end() || found->second->dtype != weight.dtype ||
        found->second->shape != weight.shape) {
      throw WrongField(at, path.c_str(), found == dense.end() ? "none" : "another",
                       "the dtype and shape of its tensor");
    }
  }
  for (const FileStep& step : file.steps) {
    for (const auto& [attribute, path] : step.weights) {
      if (dense.count(path) == 0) {
        throw WrongField(at, path.c_str(), "none", "the dtype and shape of a region's weight");
      }
    }
  }
}

void ReadMetadata(const Json& data, ProgramFile* file) {
  if (JsonText(data, "format", kAt) != "recsys-plan") {
    throw WrongField(kAt, "format", StrOf(data["format"]), "recsys-plan");
  }
  CheckFormatVersion(data, kProgramFileVersion, kAt);
  file->num_inputs = NumberOf(data, "num_inputs", kAt, 1, kMostItems);
  std::int64_t num_places = file->num_inputs;
  ForEachItem(data, "checks", kAt, [&](const std::string& at, const Json& item) {
    file->checks.push_back(CheckOf(item, at, *file));
  });
  ForEachItem(data, "steps", kAt, [&](const std::string& at, const Json& item) {
    file->steps.push_back(StepOf(item, at, *file, num_places));
    num_places += file->steps.back().num_places();
  });
  ForEachItem(data, "outputs", kAt, [&](const std::string& at, const Json& item) {
    const std::int64_t place = NumberOf(item, "place", at, 0, num_places);
    file->outputs.emplace_back(JsonText(item, "name", at), place);
  });
  if (data.find("dense") == data.end()) {
    // Earlier releases wrote none; whole numbers are a part of the steps there.
    for (const auto& [path, weight] : file->weights) {
      if (weight.dtype.find("float") != std::string::npos) {
        file->dense.push_back({path, weight.dtype, weight.shape});
      }
    }
    return;
  }
  for (const auto& item : JsonMapping(data, "dense", kAt).items()) {
    const std::string at = std::string(kAt) + ".dense." + item.key();
    file->dense.push_back({item.key(), JsonChoice(item.value(), "dtype", at, DenseDtypeNames()),
                           JsonShape(item.value(), "shape", at)});
  }
  CheckDense(*file);
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

ProgramFile ReadProgramFile(std::string_view bytes) try {
  std::size_t start = 0;
  const Json header = HeaderOf(bytes, &start);
  ProgramFile file;
  const std::string prefix = kWeightPrefix;
  const Json& metadata = JsonMapping(header, "__metadata__", kAt);
  Places places;
  for (const auto& item : header.items()) {
    const std::string& name = item.key();
    if (name == "__metadata__") continue;
    FileTensor tensor = TensorOf(item.value(), "operators.tensors." + name, start, bytes.size());
    places.emplace(tensor.offset, std::pair(name, tensor.num_bytes));
    if (name.compare(0, prefix.size(), prefix) == 0) {
      file.weights.emplace(name.substr(prefix.size()), std::move(tensor));
    } else {
      file.tensors.emplace(name, std::move(tensor));
    }
  }
  ReadMetadata(ParseJson(JsonText(metadata, "recsys", kAt)), &file);
  CheckCover(places, start, bytes.size());
  return file;
} catch (const JsonError& error) {
  throw Error(ErrorKind::kManifest,
              std::string("operators: its header is not readable as JSON: ") + error.what());
}

}  // namespace recsys
