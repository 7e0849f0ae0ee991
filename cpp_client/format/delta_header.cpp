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

/// Reads a section; CheckSection sets its size.
DeltaSection SectionOf(const Json& data, const char* key, const std::string& record_at) {
  const Json& found = JsonField(data, key, record_at);
  const std::string at = record_at + "." + key;
  DeltaSection section;
  section.offset_bytes = JsonWhole(found, "offset_bytes", at);
  section.sha256 = JsonHex(found, "sha256", at, 64);
  return section;
}

/// Checks that a section of `num_bytes` lies in [*start, end); sets `start` to its end.
void CheckSection(DeltaSection* section, Wide num_bytes, const std::string& at, std::int64_t end,
                  std::int64_t* start) {
  if (section->offset_bytes % kSectionAlignmentBytes != 0 || section->offset_bytes < *start ||
      section->offset_bytes > end - num_bytes) {
    throw WrongField(at, "offset_bytes", std::to_string(section->offset_bytes),
                     "a multiple of " + std::to_string(kSectionAlignmentBytes) + " from " +
                         std::to_string(*start) + " on, with " + WideText(num_bytes) +
                         " bytes up to " + std::to_string(end));
  }
  section->num_bytes = static_cast<std::int64_t>(num_bytes);
  *start = section->offset_bytes + section->num_bytes;
}

TableDelta TableOf(const Json& item, const std::string& at) {
  TableDelta table;
  static_cast<TableShape&>(table) = TableShapeFromJson(item, at);
  table.num_rows = JsonCount(item, "num_rows", at);
  table.rows = SectionOf(item, "rows", at);
  table.numbers = SectionOf(item, "numbers", at);
  return table;
}

void CheckTable(TableDelta* table, const std::string& at, std::int64_t end, std::int64_t* start) {
  // Products of two int64 cannot overflow; a row of exabytes is refused whatever the number of
  // rows.
  const Wide row_bytes =
      std::min<Wide>(table->row_format().row_bytes(), std::numeric_limits<std::int64_t>::max());
  CheckSection(&table->rows, row_bytes * table->num_rows, at + ".rows", end, start);
  CheckSection(&table->numbers, kNumberBytes * table->num_rows, at + ".numbers", end, start);
  if (table->num_rows > table->num_embeddings) {
    throw WrongField(at, "num_rows", std::to_string(table->num_rows),
                     "at most the table's " + std::to_string(table->num_embeddings));
  }
}

MappingDelta MappingOf(const Json& item, const std::string& at) {
  MappingDelta mapping;
  mapping.name = JsonText(item, "name", at);
  mapping.num_rows = JsonCount(item, "num_rows", at);
  mapping.num_ids = JsonWhole(item, "num_ids", at);
  mapping.num_evicted = JsonWhole(item, "num_evicted", at);
  mapping.raw_ids = SectionOf(item, "raw_ids", at);
  mapping.rows = SectionOf(item, "rows", at);
  mapping.evicted = SectionOf(item, "evicted", at);
  return mapping;
}

void CheckMapping(MappingDelta* mapping, const std::string& at, std::int64_t end,
                  std::int64_t* start) {
  // A compacted chain may evict more raw IDs than there are rows.
  if (mapping->num_ids > mapping->num_rows) {
    throw WrongField(at, "num_ids", std::to_string(mapping->num_ids),
                     "at most the table's " + std::to_string(mapping->num_rows) + " rows");
  }
  const Wide num_bytes = kNumberBytes * mapping->num_ids;
  CheckSection(&mapping->raw_ids, num_bytes, at + ".raw_ids", end, start);
  CheckSection(&mapping->rows, num_bytes, at + ".rows", end, start);
  CheckSection(&mapping->evicted, kNumberBytes * mapping->num_evicted, at + ".evicted", end, start);
}

constexpr std::size_t kMaxDims = 16;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 48;

DenseDelta DenseOf(const Json& item, const std::string& at) {
  DenseDelta weight;
  weight.name = JsonText(item, "name", at);
  weight.dtype = JsonChoice(item, "dtype", at, DenseDtypeNames());
  weight.shape = JsonShape(item, "shape", at);
  weight.values = SectionOf(item, "values", at);
  return weight;
}

void CheckDense(DenseDelta* weight, const std::string& at, std::int64_t end, std::int64_t* start) {
  const bool is_large = std::any_of(weight->shape.begin(), weight->shape.end(),
                                    [](std::int64_t dim) { return dim >= kMaxDim; });
  if (weight->shape.size() > kMaxDims || is_large) {
    throw WrongField(at, "shape", StrOf(Json(weight->shape)),
                     "at most " + std::to_string(kMaxDims) + " dimensions below 2**48");
  }
  CheckSection(&weight->values, TensorBytes(weight->dtype, weight->shape), at + ".values", end,
               start);
}

/// Checks when the delta was made; earlier releases did not write it.
void CheckCreated(const Json& data) {
  const auto found = data.find("created_s");
  if (found == data.end()) return;
  if (found->is_number() && found->get<double>() >= 0 && found->get<double>() < kMaxSeconds) return;
  throw WrongField("delta", "created_s", StrOf(*found), "seconds since the epoch");
}

template <typename Record>
void ReadItems(const Json& data, const char* key, Record (*read)(const Json&, const std::string&),
               std::vector<Record>* records) {
  ForEachItem(data, key, "delta",
              [&](const std::string& at, const Json& item) { records->push_back(read(item, at)); });
}

/// Checks the sections of records in order.
template <typename Record>
void CheckItems(std::vector<Record>* records, const std::string& at,
                void (*check)(Record*, const std::string&, std::int64_t, std::int64_t*),
                std::int64_t end, std::int64_t* start) {
  for (std::size_t i = 0; i < records->size(); ++i) {
    check(&(*records)[i], at + "[" + std::to_string(i) + "]", end, start);
  }
}

template <typename Record>
std::vector<std::string> NamesOf(const std::vector<Record>& records) {
  std::vector<std::string> names;
  for (const Record& record : records) names.push_back(record.name);
  return names;
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
  header.model = JsonText(data, "model", "delta");
  header.artifact = JsonHex(data, "artifact", "delta", kDigestDigits);
  header.base = JsonHex(data, "base", "delta", kDigestDigits);
  CheckCreated(data);
  header.num_dense_left = JsonWhole(data, "num_dense_left", "delta");
  ReadItems(data, "tables", TableOf, &header.tables);
  if (data.contains("mappings")) ReadItems(data, "mappings", MappingOf, &header.mappings);
  if (data.contains("dense")) ReadItems(data, "dense", DenseOf, &header.dense);
  if (data.contains("replaces")) {
    ForEachItem(data, "replaces", "delta", [&](const std::string& at, const Json& item) {
      header.replaces.push_back(JsonHex(Json{{"digest", item}}, "digest", at, kDigestDigits));
    });
    CheckOnce(header.replaces, "delta.replaces");
  }
  std::int64_t start = kDeltaPreambleBytes;
  CheckItems(&header.tables, "delta.tables", CheckTable, end, &start);
  CheckItems(&header.mappings, "delta.mappings", CheckMapping, end, &start);
  CheckItems(&header.dense, "delta.dense", CheckDense, end, &start);
  CheckOnce(NamesOf(header.tables), "delta.tables");
  CheckOnce(NamesOf(header.mappings), "delta.mappings");
  CheckOnce(NamesOf(header.dense), "delta.dense");
  return header;
}

}  // namespace recsys
