#include "format/delta_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "base/hash/sha256.h"
#include "base/text.h"
#include "format/file_name.h"
#include "format/manifest/manifest.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::string_view kMagic("recsys-delta\r\n\x1a\n", 16);
// Some 100 000 tables; nothing larger is read into memory before its digest is known.
constexpr std::uint64_t kMaxHeaderBytes = 1U << 26;

std::uint64_t NumberAt(const std::string& data, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, data.data() + at, sizeof(value));
  return value;
}

/// Whether all numbers are finite, judging by their exponents.
template <typename Bits>
bool AreFinite(const unsigned char* numbers, std::size_t num, Bits exponent) {
  bool finite = true;
  for (std::size_t i = 0; i < num; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, numbers + i * sizeof(Bits), sizeof(Bits));
    finite = finite && (bits & exponent) != exponent;
  }
  return finite;
}

bool AreRowsFinite(const DeltaRows& delta, const RowFormat& format) {
  constexpr std::uint16_t kHalf = 0x7c00;
  const std::size_t num_bytes = delta.rows.size();
  if (format.data_type == DataType::kFp32) {
    return AreFinite<std::uint32_t>(delta.rows.data(), num_bytes / 4, 0x7f800000);
  }
  if (format.data_type == DataType::kFp16) {
    return AreFinite<std::uint16_t>(delta.rows.data(), num_bytes / 2, kHalf);
  }
  const auto row_bytes = static_cast<std::size_t>(format.row_bytes());
  for (std::size_t at = 0; at < num_bytes; at += row_bytes) {
    if (!AreFinite<std::uint16_t>(delta.rows.data() + at, 2, kHalf)) return false;
  }
  return true;
}

bool AreDenseFinite(const std::vector<unsigned char>& data, const std::string& dtype) {
  if (dtype == "float64") {
    return AreFinite<std::uint64_t>(data.data(), data.size() / 8, 0x7ff0000000000000);
  }
  if (dtype == "float32") {
    return AreFinite<std::uint32_t>(data.data(), data.size() / 4, 0x7f800000);
  }
  if (dtype == "float16") return AreFinite<std::uint16_t>(data.data(), data.size() / 2, 0x7c00);
  if (dtype == "bfloat16") return AreFinite<std::uint16_t>(data.data(), data.size() / 2, 0x7f80);
  return true;
}

bool Ascend(const std::vector<std::int64_t>& numbers) {
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (numbers[i] <= numbers[i - 1]) return false;
  }
  return true;
}

}  // namespace

DeltaFile::DeltaFile(const std::string& path) : name_(NameOfPath(path)) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw Error(ErrorKind::kArtifactNotFound,
                "delta: got " + Repr(name_) +
                    ", which does not exist; expected a file that recsys-export --delta wrote");
  }
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw Error(ErrorKind::kForeignFile, "delta: " + Repr(name_) + " is no file, and so no delta");
  }
  file_.open(path, std::ios::binary);
  if (!file_) throw Error(ErrorKind::kForeignFile, "delta: cannot read " + Repr(name_));
  std::int64_t start = 0;
  const std::string header = ReadHeader(&start);
  digest_ = Sha256Hex(header).substr(0, kDigestDigits);
  Json data;
  try {
    data = ParseJson(header);
  } catch (const JsonError& error) {
    throw Error(ErrorKind::kManifest,
                std::string("delta header: not readable as JSON: ") + error.what());
  }
  header_ = DeltaHeaderFromJson(data, start);
  if (!header_.replaces.empty()) digest_ = header_.replaces.back();
}

std::string DeltaFile::ReadHeader(std::int64_t* start) {
  file_.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(file_.tellg());
  file_.seekg(0);
  std::string preamble(kDeltaPreambleBytes, '\0');
  file_.read(preamble.data(), kDeltaPreambleBytes);
  preamble.resize(static_cast<std::size_t>(file_.gcount()));
  const std::string_view magic = std::string_view(preamble).substr(0, kMagic.size());
  if (magic.empty() || kMagic.substr(0, magic.size()) != magic) {
    throw Error(ErrorKind::kForeignFile,
                "delta: " + Repr(name_) + " is no delta: it does not begin as one");
  }
  const std::string what = "delta " + Repr(name_) + ": ";
  if (preamble.size() < static_cast<std::size_t>(kDeltaPreambleBytes)) {
    throw Error(ErrorKind::kPartSize, what + "got " + std::to_string(size) +
                                          " bytes, expected 64 at least; it is cut off");
  }
  const std::uint64_t at = NumberAt(preamble, 16), num_bytes = NumberAt(preamble, 24);
  // Offsets of 2**62 and above are refused, so that the sum below cannot overflow.
  if (at < static_cast<std::uint64_t>(kDeltaPreambleBytes) || num_bytes > kMaxHeaderBytes ||
      at >> 62 != 0) {
    throw Error(ErrorKind::kManifest,
                what + "its first 64 bytes are damaged, or it was never finished");
  }
  if (at + num_bytes != size) {
    throw Error(ErrorKind::kPartSize, what + "got " + std::to_string(size) + " bytes, expected " +
                                          std::to_string(at + num_bytes));
  }
  std::string header(num_bytes, '\0');
  file_.seekg(static_cast<std::streamoff>(at));
  file_.read(header.data(), static_cast<std::streamsize>(num_bytes));
  Sha256 digest;
  digest.Update(header.data(), header.size());
  const Sha256::Digest found = digest.Finish();
  if (!file_ || std::memcmp(found.data(), preamble.data() + 32, found.size()) != 0) {
    throw Error(ErrorKind::kChecksum,
                what + "its header's checksum does not match; it was changed or damaged");
  }
  *start = static_cast<std::int64_t>(at);
  return header;
}

void DeltaFile::ReadSection(const DeltaSection& section, const std::string& what, char* to) {
  file_.clear();
  file_.seekg(section.offset_bytes);
  file_.read(to, section.num_bytes);
  if (file_.gcount() != section.num_bytes) {
    throw Error(ErrorKind::kPartSize, what + ": the file ends early");
  }
  if (Sha256Hex({to, static_cast<std::size_t>(section.num_bytes)}) != section.sha256) {
    throw Error(ErrorKind::kChecksum,
                what + ": the checksum does not match; it was changed or damaged");
  }
}

MappingChange DeltaFile::ReadMapping(const MappingDelta& mapping) {
  const std::string what = "delta " + Repr(name_) + ", mapping of table " + Repr(mapping.name);
  MappingChange change;
  const auto read = [&](const DeltaSection& section, std::int64_t size,
                        std::vector<std::int64_t>* to) {
    to->resize(static_cast<std::size_t>(size));
    ReadSection(section, what, reinterpret_cast<char*>(to->data()));
  };
  read(mapping.raw_ids, mapping.num_ids, &change.raw_ids);
  read(mapping.rows, mapping.num_ids, &change.rows);
  read(mapping.evicted, mapping.num_evicted, &change.evicted);
  const auto expect_ascending = [&](const char* key, const std::vector<std::int64_t>& ids) {
    if (Ascend(ids)) return;
    throw Error(ErrorKind::kManifest,
                what + ": got " + key + " out of order, expected ascending raw IDs, each once");
  };
  expect_ascending("raw_ids", change.raw_ids);
  expect_ascending("evicted", change.evicted);
  std::vector<std::int64_t> rows = change.rows;
  std::sort(rows.begin(), rows.end());
  if (!rows.empty() && (rows.front() < 0 || rows.back() >= mapping.num_rows)) {
    throw Error(ErrorKind::kManifest, what + ": got rows from " + std::to_string(rows.front()) +
                                          " to " + std::to_string(rows.back()) +
                                          ", expected 0 to " +
                                          std::to_string(mapping.num_rows - 1));
  }
  if (!Ascend(rows)) {
    throw Error(ErrorKind::kManifest, what + ": got a row of two raw IDs, expected each row once");
  }
  std::vector<std::int64_t> both;
  std::set_intersection(change.raw_ids.begin(), change.raw_ids.end(), change.evicted.begin(),
                        change.evicted.end(), std::back_inserter(both));
  if (!both.empty()) {
    throw Error(ErrorKind::kManifest,
                what + ": got a raw ID that is evicted and gets a row, expected one of both");
  }
  return change;
}

std::vector<unsigned char> DeltaFile::ReadDense(const DenseDelta& weight) {
  const std::string what = "delta " + Repr(name_) + ", dense weight " + Repr(weight.name);
  std::vector<unsigned char> data(static_cast<std::size_t>(weight.values.num_bytes));
  ReadSection(weight.values, what, reinterpret_cast<char*>(data.data()));
  if (!AreDenseFinite(data, weight.dtype)) {
    throw Error(ErrorKind::kManifest,
                what + ": got a number that is not finite, expected finite numbers");
  }
  return data;
}

DeltaRows DeltaFile::Read(const TableDelta& table) {
  const std::string what = "delta " + Repr(name_) + ", table " + Repr(table.name);
  DeltaRows delta;
  delta.numbers.resize(static_cast<std::size_t>(table.num_rows));
  delta.rows.resize(static_cast<std::size_t>(table.rows.num_bytes));
  ReadSection(table.numbers, what, reinterpret_cast<char*>(delta.numbers.data()));
  ReadSection(table.rows, what, reinterpret_cast<char*>(delta.rows.data()));
  const std::int64_t first = delta.numbers.front(), last = delta.numbers.back();
  if (first < 0 || last >= table.num_embeddings || !Ascend(delta.numbers)) {
    throw Error(ErrorKind::kManifest, what + ": got numbers of rows from " + std::to_string(first) +
                                          " to " + std::to_string(last) +
                                          ", expected ascending ones from 0 to " +
                                          std::to_string(table.num_embeddings - 1) + ", each once");
  }
  if (!AreRowsFinite(delta, table.row_format())) {
    throw Error(ErrorKind::kManifest,
                what + ": got a row that is not finite, expected finite numbers");
  }
  return delta;
}

}  // namespace recsys
