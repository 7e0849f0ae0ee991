#include "format/delta_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "base/hash/sha256.h"
#include "base/text.h"
#include "base/yield.h"
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

/// Calls a function with parts [begin, end) of numbers that are kept in some bytes, and lets other
/// threads run between two parts. Returns whether it returned true for all; stops at the first.
template <typename Check>
bool AllParts(std::size_t num, std::size_t bytes_each, Check check) {
  const std::size_t most = std::max<std::size_t>(kBytesPerYield / bytes_each, 1);
  for (std::size_t begin = 0; begin < num; begin += most) {
    if (!check(begin, std::min(begin + most, num))) return false;
    YieldIfDue();
  }
  return true;
}

/// Whether all numbers are finite, judging by their exponents.
template <typename Bits>
bool AreFiniteIn(const unsigned char* numbers, std::size_t num, Bits exponent) {
  bool finite = true;
  for (std::size_t i = 0; i < num; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, numbers + i * sizeof(Bits), sizeof(Bits));
    finite = finite && (bits & exponent) != exponent;
  }
  return finite;
}

template <typename Bits>
bool AreFinite(const unsigned char* numbers, std::size_t num, Bits exponent) {
  return AllParts(num, sizeof(Bits), [&](std::size_t begin, std::size_t end) {
    return AreFiniteIn(numbers + begin * sizeof(Bits), end - begin, exponent);
  });
}

bool AreRowsFinite(const DeltaRows& delta, const RowFormat& format) {
  constexpr std::uint16_t kHalf = 0x7c00;
  const auto num_rows = static_cast<std::size_t>(delta.num_rows);
  const auto row_bytes = static_cast<std::size_t>(format.row_bytes());
  const unsigned char* const rows = delta.rows.get();
  if (format.data_type == DataType::kFp32) {
    return AreFinite<std::uint32_t>(rows, num_rows * row_bytes / 4, 0x7f800000);
  }
  if (format.data_type == DataType::kFp16) {
    return AreFinite<std::uint16_t>(rows, num_rows * row_bytes / 2, kHalf);
  }
  // The scale and bias at the head of each row.
  return AllParts(num_rows, row_bytes, [&](std::size_t begin, std::size_t end) {
    bool finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      finite = finite && AreFiniteIn<std::uint16_t>(rows + i * row_bytes, 2, kHalf);
    }
    return finite;
  });
}

bool AreDenseFinite(const void* data, const DenseDelta& weight) {
  const auto* const numbers = static_cast<const unsigned char*>(data);
  const auto size = static_cast<std::size_t>(weight.values.num_bytes);
  if (weight.dtype == "float64") {
    return AreFinite<std::uint64_t>(numbers, size / 8, 0x7ff0000000000000);
  }
  if (weight.dtype == "float32") return AreFinite<std::uint32_t>(numbers, size / 4, 0x7f800000);
  if (weight.dtype == "float16") return AreFinite<std::uint16_t>(numbers, size / 2, 0x7c00);
  if (weight.dtype == "bfloat16") return AreFinite<std::uint16_t>(numbers, size / 2, 0x7f80);
  return true;
}

bool Ascend(const std::int64_t* numbers, std::size_t num) {
  return AllParts(num, sizeof(std::int64_t), [&](std::size_t begin, std::size_t end) {
    bool ascend = true;
    for (std::size_t i = std::max<std::size_t>(begin, 1); i < end; ++i) {
      ascend = ascend && numbers[i] > numbers[i - 1];
    }
    return ascend;
  });
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
  Sha256 digest;
  // In parts, which are still in the cache when the checksum needs them.
  for (std::int64_t at = 0; at < section.num_bytes;) {
    const std::int64_t num =
        std::min(section.num_bytes - at, static_cast<std::int64_t>(kBytesPerYield));
    file_.read(to + at, num);
    if (file_.gcount() != num) {
      throw Error(ErrorKind::kPartSize, what + ": the file ends early");
    }
    digest.Update(to + at, static_cast<std::size_t>(num));
    at += num;
    YieldIfDue();
  }
  if (HexOf(digest.Finish()) != section.sha256) {
    throw Error(ErrorKind::kChecksum,
                what + ": the checksum does not match; it was changed or damaged");
  }
}

MappingChange DeltaFile::ReadMapping(const MappingDelta& mapping) {
  const std::string what = "delta " + Repr(name_) + ", mapping of table " + Repr(mapping.name);
  MappingChange change;
  const auto read = [&](const DeltaSection& section, std::int64_t size,
                        std::vector<std::int64_t>* to) {
    ResizeInTurns(to, static_cast<std::size_t>(size));
    ReadSection(section, what, reinterpret_cast<char*>(to->data()));
  };
  read(mapping.raw_ids, mapping.num_ids, &change.raw_ids);
  read(mapping.rows, mapping.num_ids, &change.rows);
  read(mapping.evicted, mapping.num_evicted, &change.evicted);
  const auto expect_ascending = [&](const char* key, const std::vector<std::int64_t>& ids) {
    if (Ascend(ids.data(), ids.size())) return;
    throw Error(ErrorKind::kManifest,
                what + ": got " + key + " out of order, expected ascending raw IDs, each once");
  };
  expect_ascending("raw_ids", change.raw_ids);
  expect_ascending("evicted", change.evicted);
  const std::vector<std::int64_t> rows = SortedInTurns(change.rows);
  if (!rows.empty() && (rows.front() < 0 || rows.back() >= mapping.num_rows)) {
    throw Error(ErrorKind::kManifest, what + ": got rows from " + std::to_string(rows.front()) +
                                          " to " + std::to_string(rows.back()) +
                                          ", expected 0 to " +
                                          std::to_string(mapping.num_rows - 1));
  }
  if (!Ascend(rows.data(), rows.size())) {
    throw Error(ErrorKind::kManifest, what + ": got a row of two raw IDs, expected each row once");
  }
  std::size_t num_looked_up = 0;
  for (const std::int64_t raw_id : change.evicted) {
    YieldIfDue(num_looked_up++);
    if (!std::binary_search(change.raw_ids.begin(), change.raw_ids.end(), raw_id)) continue;
    throw Error(ErrorKind::kManifest,
                what + ": got a raw ID that is evicted and gets a row, expected one of both");
  }
  return change;
}

void DeltaFile::ReadDense(const DenseDelta& weight, void* to) {
  const std::string what = "delta " + Repr(name_) + ", dense weight " + Repr(weight.name);
  ReadSection(weight.values, what, static_cast<char*>(to));
  if (AreDenseFinite(to, weight)) return;
  throw Error(ErrorKind::kManifest,
              what + ": got a number that is not finite, expected finite numbers");
}

DeltaRows DeltaFile::Read(const TableDelta& table) {
  const std::string what = "delta " + Repr(name_) + ", table " + Repr(table.name);
  const auto num_rows = static_cast<std::size_t>(table.num_rows);
  DeltaRows delta;
  delta.num_rows = table.num_rows;
  // Without zeros, which would be written in one turn.
  delta.numbers.reset(new std::int64_t[num_rows]);
  delta.rows.reset(new unsigned char[static_cast<std::size_t>(table.rows.num_bytes)]);
  ReadSection(table.numbers, what, reinterpret_cast<char*>(delta.numbers.get()));
  ReadSection(table.rows, what, reinterpret_cast<char*>(delta.rows.get()));
  const std::int64_t first = delta.numbers[0], last = delta.numbers[table.num_rows - 1];
  if (first < 0 || last >= table.num_embeddings || !Ascend(delta.numbers.get(), num_rows)) {
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
