#include "server/observe/capture_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "recsys/error.h"
#include "server/observe/crc32.h"
#include "wire/writer.h"

namespace recsys {
namespace {

constexpr char kMagic[] = "RECSCAP\n";
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;
constexpr std::uint32_t kVersion = 1;
/// Magic, version, beginning; their CRC-32 follows.
constexpr std::size_t kHeaderBytes = kMagicBytes + 4 + 8 + 4;
/// Length and CRC-32 of the body; their CRC-32 follows.
constexpr std::size_t kHeadBytes = 12;
/// Time, bytes of the model's name, bytes of the version.
constexpr std::size_t kBodyHeadBytes = 12;
constexpr std::size_t kMaxNameBytes = 0xFFFF;

void AppendLittle(std::uint64_t number, int num_bytes, std::string* text) {
  for (int i = 0; i < num_bytes; ++i) *text += static_cast<char>(number >> (8 * i) & 0xFF);
}

std::uint64_t ReadLittle(std::string_view data, std::size_t at, int num_bytes) {
  std::uint64_t number = 0;
  for (int i = num_bytes; i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(data[at + static_cast<std::size_t>(i)]);
  }
  return number;
}

Error CaptureError(const std::string& text) { return Error(ErrorKind::kCapture, text); }

/// As Python's repr() writes bytes.
std::string ReprBytes(std::string_view data) {
  const bool has_single = data.find('\'') != data.npos;
  const char quote = has_single && data.find('"') == data.npos ? '"' : '\'';
  std::string text = std::string("b") + quote;
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : data) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\r' || c == '\t') {
      text += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c == '\\' || c == quote) {
      text += '\\';
      text += c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += "\\x";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  return text + quote;
}

// Fields of recsys.v1.PredictRequest and of its inputs (protos/recsys/v1/predict.proto).
constexpr std::uint32_t kNumRows = 3, kDense = 4, kSparse = 5, kContextDense = 6,
                        kContextSparse = 7;

void WriteDense(std::uint32_t field, const std::vector<RawDense>& inputs, Writer* writer) {
  for (const RawDense& input : inputs) {
    const std::size_t size = (input.name.empty() ? 0 : DelimitedSize(1, input.name.size())) +
                             (input.values.empty() ? 0 : DelimitedSize(2, input.values.size()));
    writer->DelimitedHead(field, size);
    writer->Text(1, input.name);
    writer->Text(2, input.values);
  }
}

void WriteSparse(std::uint32_t field, const std::vector<RawSparse>& inputs, Writer* writer) {
  for (const RawSparse& input : inputs) {
    const std::string_view parts[] = {input.name, input.lengths, input.values, input.weights};
    std::size_t size = 0;
    for (const std::string_view part : parts)
      size += part.empty() ? 0 : DelimitedSize(1, part.size());
    writer->DelimitedHead(field, size);
    for (std::uint32_t i = 0; i < std::size(parts); ++i) writer->Text(i + 1, parts[i]);
  }
}

CapturedRequest RequestOf(std::string_view body, const std::string& at) {
  if (body.size() < kBodyHeadBytes) {
    throw CaptureError(at + ": got " + std::to_string(body.size()) + " bytes, expected at least " +
                       std::to_string(kBodyHeadBytes));
  }
  CapturedRequest request;
  request.time_us = ReadLittle(body, 0, 8);
  const std::size_t model_bytes = ReadLittle(body, 8, 2);
  const std::size_t version_bytes = ReadLittle(body, 10, 2);
  if (kBodyHeadBytes + model_bytes + version_bytes > body.size()) {
    throw CaptureError(at + ": got names of " + std::to_string(model_bytes) + " and " +
                       std::to_string(version_bytes) + " bytes in " + std::to_string(body.size()) +
                       " bytes");
  }
  request.model = body.substr(kBodyHeadBytes, model_bytes);
  request.version = body.substr(kBodyHeadBytes + model_bytes, version_bytes);
  if (!IsUtf8(request.model) || !IsUtf8(request.version)) {
    throw CaptureError(at + ": got names that are not UTF-8");
  }
  request.data = body.substr(kBodyHeadBytes + model_bytes + version_bytes);
  return request;
}

}  // namespace

std::string CaptureHeader(std::uint64_t began_us) {
  std::string data(kMagic, kMagicBytes);
  AppendLittle(kVersion, 4, &data);
  AppendLittle(began_us, 8, &data);
  AppendLittle(Crc32(data), 4, &data);
  return data;
}

std::string CaptureRecord(const CapturedRequest& request) {
  const auto model = std::string_view(request.model).substr(0, kMaxNameBytes);
  const auto version = std::string_view(request.version).substr(0, kMaxNameBytes);
  std::string data(kHeadBytes, '\0');
  data.reserve(kHeadBytes + kBodyHeadBytes + model.size() + version.size() + request.data.size());
  AppendLittle(request.time_us, 8, &data);
  AppendLittle(model.size(), 2, &data);
  AppendLittle(version.size(), 2, &data);
  data.append(model).append(version).append(request.data);
  const std::string_view body = std::string_view(data).substr(kHeadBytes);
  std::string head;
  AppendLittle(body.size(), 4, &head);
  AppendLittle(Crc32(body), 4, &head);
  AppendLittle(Crc32(head), 4, &head);
  return data.replace(0, kHeadBytes, head);
}

std::string SerializedForCapture(const RawRequest& raw) {
  Writer writer(NumBytesOf(raw) + 256);
  if (raw.num_rows != 0) writer.VarintField(kNumRows, static_cast<std::uint64_t>(raw.num_rows));
  WriteDense(kDense, raw.dense, &writer);
  WriteSparse(kSparse, raw.sparse, &writer);
  WriteDense(kContextDense, raw.context_dense, &writer);
  WriteSparse(kContextSparse, raw.context_sparse, &writer);
  return writer.Finish().Joined();
}

std::size_t NumBytesOf(const RawRequest& raw) {
  std::size_t sum = 0;
  for (const auto* const inputs : {&raw.dense, &raw.context_dense}) {
    for (const RawDense& input : *inputs) sum += input.values.size();
  }
  for (const auto* const inputs : {&raw.sparse, &raw.context_sparse}) {
    for (const RawSparse& input : *inputs) {
      sum += input.lengths.size() + input.values.size() + input.weights.size();
    }
  }
  return sum;
}

CaptureReader::CaptureReader(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);
  // A pipe that has this name must not make anybody wait.
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) {
    throw CaptureError("capture " + name + ": cannot be read: " + std::strerror(errno));
  }
  try {
    ReadHeader(name);
  } catch (...) {
    close(file_);
    throw;
  }
}

CaptureReader::~CaptureReader() { close(file_); }

void CaptureReader::ReadHeader(const std::string& name) {
  struct stat about {};
  if (fstat(file_, &about) != 0 || !S_ISREG(about.st_mode)) {
    throw CaptureError("capture " + name + ": got something else, expected a file");
  }
  size_ = static_cast<std::uint64_t>(about.st_size);
  const std::string data = ReadAt(0, kHeaderBytes);
  if (data.size() < kHeaderBytes || data.compare(0, kMagicBytes, kMagic) != 0) {
    throw CaptureError("header: got " + ReprBytes(std::string_view(data).substr(0, kMagicBytes)) +
                       ", expected " + ReprBytes(kMagic) + ": this is not a capture");
  }
  constexpr std::size_t kChecked = kHeaderBytes - 4;
  if (ReadLittle(data, kChecked, 4) != Crc32(std::string_view(data).substr(0, kChecked))) {
    throw CaptureError("header: its checksum does not fit: the file is damaged");
  }
  const std::uint64_t version = ReadLittle(data, kMagicBytes, 4);
  if (version != kVersion) {
    throw CaptureError("header: got version " + std::to_string(version) + ", expected " +
                       std::to_string(kVersion) + ": use the release that wrote it");
  }
  began_us_ = ReadLittle(data, kMagicBytes + 4, 8);
  at_ = kHeaderBytes;
}

std::string CaptureReader::ReadAt(std::uint64_t start, std::size_t num_bytes) const {
  std::string data(num_bytes, '\0');
  std::size_t got = 0;
  while (got < num_bytes) {
    const ssize_t more =
        pread(file_, data.data() + got, num_bytes - got, static_cast<off_t>(start + got));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0)
      throw CaptureError(std::string("capture: cannot be read: ") + std::strerror(errno));
    if (more == 0) break;
    got += static_cast<std::size_t>(more);
  }
  data.resize(got);
  return data;
}

std::optional<CapturedRequest> CaptureReader::Next() {
  if (at_ >= size_) return std::nullopt;
  ++number_;
  const std::string at = "record " + std::to_string(number_) + ", at byte " + std::to_string(at_);
  const std::string head = ReadAt(at_, kHeadBytes);
  // Where not even the head is whole, nothing is known of the body.
  std::uint64_t length = size_;
  if (head.size() == kHeadBytes) {
    if (ReadLittle(head, 8, 4) != Crc32(std::string_view(head).substr(0, 8))) {
      throw CaptureError(
          at + ": the checksum of its head does not fit: the file is damaged from here on");
    }
    length = ReadLittle(head, 0, 4);
  }
  if (at_ + kHeadBytes + length > size_) {
    num_cut_bytes_ = size_ - at_;
    at_ = size_;
    return std::nullopt;
  }
  const std::string body = ReadAt(at_ + kHeadBytes, length);
  if (Crc32(body) != ReadLittle(head, 4, 4)) {
    throw CaptureError(at + ": its checksum does not fit: the file is damaged here");
  }
  CapturedRequest request = RequestOf(body, at);
  at_ += kHeadBytes + length;
  return request;
}

}  // namespace recsys
