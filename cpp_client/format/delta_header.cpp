#include "format/delta_header.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "format/json/checked_json.h"
#include "format/manifest/manifest.h"
#include "format/manifest/manifest_checks.h"

namespace recsys {
namespace {

constexpr char kFormat[] = "recsys-delta";
constexpr std::int64_t kFormatVersion = 3;
constexpr std::int64_t kSectionAlignmentBytes = 64;
constexpr Wide kNumberBytes = 8;
// The end of the year 9999, in seconds since the epoch.
constexpr double kMaxSeconds = 253402300800.0;

/// Reads a section that must lie in [*start, end); sets `start` to the section's end.
DeltaSection SectionOf(const Json& data, const char* key, const std::string& table_at,
                       Wide num_bytes, std::int64_t end, std::int64_t* start) {
  const Json& found = JsonField(data, key, table_at);
  const std::string at = table_at + "." + key;
  DeltaSection section;
  section.offset_bytes = JsonWhole(found, "offset_bytes", at);
  if (section.offset_bytes % kSectionAlignmentBytes != 0 || section.offset_bytes < *start ||
      section.offset_bytes > end - num_bytes) {
    throw WrongField(at, "offset_bytes", std::to_string(section.offset_bytes),
                     "a multiple of " + std::to_string(kSectionAlignmentBytes) + " from " +
                         std::to_string(*start) + " on, with " + WideText(num_bytes) +
                         " bytes up to " + std::to_string(end));
  }
  section.num_bytes = static_cast<std::int64_t>(num_bytes);
  section.sha256 = JsonHex(found, "sha256", at, 64);
  *start = section.offset_bytes + section.num_bytes;
  return section;
}

MappingDelta MappingOf(const Json& item, const std::string& at, std::int64_t end,
                       std::int64_t* start) {
  MappingDelta mapping;
  mapping.num_rows = JsonCount(item, "num_rows", at);
  mapping.num_ids = JsonWhole(item, "num_ids", at);
  mapping.num_evicted = JsonWhole(item, "num_evicted", at);
  // A compacted chain may evict more raw IDs than there are rows.
  if (mapping.num_ids > mapping.num_rows) {
    throw WrongField(at, "num_ids", std::to_string(mapping.num_ids),
                     "at most the table's " + std::to_string(mapping.num_rows) + " rows");
  }
  const auto section = [&](const char* key, std::int64_t size) {
    return SectionOf(item, key, at, kNumberBytes * size, end, start);
  };
  mapping.raw_ids = section("raw_ids", mapping.num_ids);
  mapping.rows = section("rows", mapping.num_ids);
  mapping.evicted = section("evicted", mapping.num_evicted);
  mapping.name = JsonText(item, "name", at);
  return mapping;
}

constexpr std::size_t kMaxDims = 16;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 48;

DenseDelta DenseOf(const Json& item, const std::string& at, std::int64_t end, std::int64_t* start) {
  DenseDelta weight;
  weight.dtype = JsonChoice(item, "dtype", at, DenseDtypeNames());
  weight.shape = JsonShape(item, "shape", at);
  if (weight.shape.size() > kMaxDims ||
      std::any_of(weight.shape.begin(), weight.shape.end(),
                  [](std::int64_t dim) { return dim >= kMaxDim; })) {
    throw WrongField(at, "shape", StrOf(item["shape"]),
                     "at most " + std::to_string(kMaxDims) + " dimensions below 2**48");
  }
  const Wide num_bytes = TensorBytes(weight.dtype, weight.shape);
  weight.values = SectionOf(item, "values", at, num_bytes, end, start);
  weight.name = JsonText(item, "name", at);
  return weight;
}

/// Checks when the delta was made; earlier releases did not write it.
void CheckCreated(const Json& data) {
  const auto found = data.find("created_s");
  if (found == data.end()) return;
  if (found->is_number() && found->get<double>() >= 0 && found->get<double>() < kMaxSeconds) return;
  throw WrongField("delta", "created_s", StrOf(*found), "seconds since the epoch");
}

}  // namespace

const std::vector<std::string>& DenseDtypeNames() {
  static const std::vector<std::string> names = {
      "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"};
  return names;
}

Wide TensorBytes(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  constexpr Wide kMany = std::numeric_limits<std::int64_t>::max();
  // The names end in the number of bits.
  Wide num_bytes = std::stoi(dtype.substr(dtype.find_first_of("0123456789"))) / 8;
  for (const std::int64_t dim : shape) num_bytes = std::min(num_bytes * dim, kMany);
  return num_bytes;
}

bool DeltaHeader::Fits(const std::string& state) const {
  if (state == base) return true;
  if (replaces.empty()) return false;
  return std::find(replaces.begin(), replaces.end() - 1, state) != replaces.end() - 1;
}

DeltaHeader DeltaHeaderFromJson(const Json& data, std::int64_t end) {
  if (!data.is_object() || data.find("format") == data.end() || *data.find("format") != kFormat) {
    throw Error(ErrorKind::kForeignFile,
                std::string("delta: its format is not '") + kFormat + "'; this is no delta");
  }
  CheckFormatVersion(data, kFormatVersion, "delta");
  DeltaHeader header;
  std::int64_t start = kDeltaPreambleBytes;
  std::vector<std::string> names;
  ForEachItem(data, "tables", "delta", [&](const std::string& at, const Json& item) {
    TableDelta table;
    table.num_rows = JsonCount(item, "num_rows", at);
    table.data_type = DataTypeOf(JsonChoice(item, "data_type", at, DataTypeNames()));
    table.embedding_dim = JsonCount(item, "embedding_dim", at);
    // Products of two int64 cannot overflow; a row of exabytes is refused whatever the number of
    // rows.
    const Wide row_bytes =
        std::min<Wide>(table.row_format().row_bytes(), std::numeric_limits<std::int64_t>::max());
    table.rows = SectionOf(item, "rows", at, row_bytes * table.num_rows, end, &start);
    table.numbers = SectionOf(item, "numbers", at, kNumberBytes * table.num_rows, end, &start);
    table.num_embeddings = JsonCount(item, "num_embeddings", at);
    if (table.num_rows > table.num_embeddings) {
      throw WrongField(at, "num_rows", std::to_string(table.num_rows),
                       "at most the table's " + std::to_string(table.num_embeddings));
    }
    table.name = JsonText(item, "name", at);
    names.push_back(table.name);
    header.tables.push_back(std::move(table));
  });
  CheckOnce(names, "delta.tables");
  names.clear();
  if (data.find("mappings") != data.end()) {
    ForEachItem(data, "mappings", "delta", [&](const std::string& at, const Json& item) {
      header.mappings.push_back(MappingOf(item, at, end, &start));
      names.push_back(header.mappings.back().name);
    });
  }
  CheckOnce(names, "delta.mappings");
  names.clear();
  if (data.find("dense") != data.end()) {
    ForEachItem(data, "dense", "delta", [&](const std::string& at, const Json& item) {
      header.dense.push_back(DenseOf(item, at, end, &start));
      names.push_back(header.dense.back().name);
    });
  }
  CheckOnce(names, "delta.dense");
  header.model = JsonText(data, "model", "delta");
  header.artifact = JsonHex(data, "artifact", "delta", kDigestDigits);
  header.base = JsonHex(data, "base", "delta", kDigestDigits);
  CheckCreated(data);
  header.num_dense_left = JsonWhole(data, "num_dense_left", "delta");
  if (data.find("replaces") != data.end()) {
    ForEachItem(data, "replaces", "delta", [&](const std::string& at, const Json& item) {
      header.replaces.push_back(JsonHex(Json{{"digest", item}}, "digest", at, kDigestDigits));
    });
    CheckOnce(header.replaces, "delta.replaces");
  }
  return header;
}

}  // namespace recsys
