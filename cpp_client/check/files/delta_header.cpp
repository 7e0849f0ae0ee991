#include "check/files/delta_header.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "check/files/manifest.h"
#include "check/json/checked_json.h"

namespace recsys {
namespace {

constexpr char kFormat[] = "recsys-delta";
constexpr std::int64_t kFormatVersion = 1;
constexpr std::int64_t kSectionAlignmentBytes = 64;
constexpr Wide kNumberBytes = 8;

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

}  // namespace

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
  const std::vector<std::string> doubled = Doubled(names);
  if (!doubled.empty()) {
    throw Error(ErrorKind::kManifest, "delta.tables: got " + PythonList(doubled, 8) +
                                          " more than once, expected each once");
  }
  header.model = JsonText(data, "model", "delta");
  header.artifact = JsonHex(data, "artifact", "delta", kDigestDigits);
  header.base = JsonHex(data, "base", "delta", kDigestDigits);
  header.num_dense_left = JsonWhole(data, "num_dense_left", "delta");
  return header;
}

}  // namespace recsys
