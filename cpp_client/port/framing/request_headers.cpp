#include "port/framing/request_headers.h"

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/text.h"

namespace recsys::http2 {
namespace {

// Overhead per field, as HTTP/2 counts it (RFC 9113, 6.5.2).
constexpr std::size_t kFieldBytes = 32;
// Maximum digits of a grpc-timeout, by gRPC's specification.
constexpr std::size_t kTimeoutDigits = 8;
constexpr std::string_view kContentType = "application/grpc";
constexpr std::string_view kBinarySuffix = "-bin";

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool IsGrpcContentType(std::string_view value) {
  if (value.substr(0, kContentType.size()) != kContentType) return false;
  return value.size() == kContentType.size() || value[kContentType.size()] == '+' ||
         value[kContentType.size()] == ';';
}

double SecondsOfUnit(char unit) {
  switch (unit) {
    case 'H':
      return 3600;
    case 'M':
      return 60;
    case 'S':
      return 1;
    case 'm':
      return 1e-3;
    case 'u':
      return 1e-6;
    case 'n':
      return 1e-9;
    default:
      return -1;
  }
}

// The value of each base64 character; 64 for all others.
constexpr std::array<std::uint8_t, 256> MakeBase64Values() {
  std::array<std::uint8_t, 256> values = {};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 64;
  for (std::uint8_t i = 0; i < 26; ++i) {
    values['A' + static_cast<std::size_t>(i)] = i;
    values['a' + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(26 + i);
  }
  for (std::uint8_t i = 0; i < 10; ++i) {
    values['0' + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(52 + i);
  }
  values['+'] = 62;
  values['/'] = 63;
  return values;
}

constexpr std::array<std::uint8_t, 256> kBase64Values = MakeBase64Values();

}  // namespace

double ParseTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > kTimeoutDigits + 1) return -1;
  double number = 0;
  for (const char digit : text.substr(0, text.size() - 1)) {
    if (digit < '0' || digit > '9') return -1;
    number = 10 * number + (digit - '0');
  }
  return number * SecondsOfUnit(text.back());
}

bool DecodeBase64(std::string_view text, std::string* decoded) {
  decoded->clear();
  if (text.size() % 4 == 0 && EndsWith(text, "==")) {
    text.remove_suffix(2);
  } else if (text.size() % 4 == 0 && EndsWith(text, "=")) {
    text.remove_suffix(1);
  }
  if (text.size() % 4 == 1) return false;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char character : text) {
    const std::uint8_t value = kBase64Values[static_cast<unsigned char>(character)];
    if (value == 64) return false;
    bits = bits << 6 | value;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      decoded->push_back(static_cast<char>(bits >> num_bits & 0xff));
    }
  }
  return true;
}

std::string PercentEncoded(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char character : text) {
    if (character >= ' ' && character <= '~' && character != '%') {
      encoded.push_back(character);
      continue;
    }
    const auto byte = static_cast<unsigned char>(character);
    encoded.push_back('%');
    encoded.push_back(kHex[byte >> 4]);
    encoded.push_back(kHex[byte & 0xf]);
  }
  return encoded;
}

RequestHeaders::RequestHeaders() : timeout_s_(std::numeric_limits<double>::infinity()) {}

bool RequestHeaders::Add(std::string_view name, std::string_view value, std::size_t max_bytes) {
  num_bytes_ += name.size() + value.size() + kFieldBytes;
  if (num_bytes_ > max_bytes) {
    if (failure_.ok()) {
      Refuse(StatusCode::kResourceExhausted,
             "metadata: got more than " + std::to_string(max_bytes) + " bytes");
    }
    return false;
  }
  if (!name.empty() && name[0] == ':') {
    AddPseudo(name, value);
  } else if (!TakeOwn(name, value)) {
    if (EndsWith(name, kBinarySuffix)) {
      AddBinary(name, value);
    } else {
      const Piece kept = Keep(name);
      fields_.push_back({kept, Keep(value)});
    }
  }
  return true;
}

RequestHeaders::Piece RequestHeaders::Keep(std::string_view text) {
  const std::size_t at = text_.size();
  text_.append(text);
  return {at, text.size()};
}

void RequestHeaders::AddPseudo(std::string_view name, std::string_view value) {
  if (name == ":path") {
    path_ = Keep(value);
  } else if (name == ":method") {
    is_post_ = value == "POST";
  }
}

bool RequestHeaders::TakeOwn(std::string_view name, std::string_view value) {
  if (name == "te" || name == "grpc-accept-encoding") return true;
  if (name == "content-type") {
    is_grpc_ = IsGrpcContentType(value);
  } else if (name == "grpc-timeout") {
    timeout_s_ = ParseTimeout(value);
    if (timeout_s_ < 0) {
      Refuse(StatusCode::kInternal,
             "grpc-timeout: got " + Short(value) + ", expected up to 8 digits and a unit");
    }
  } else if (name == "grpc-encoding") {
    if (value == "gzip") {
      encoding_ = MessageEncoding::kGzip;
    } else if (value == "deflate") {
      encoding_ = MessageEncoding::kDeflate;
    } else if (value != "identity") {
      Refuse(StatusCode::kUnimplemented,
             "grpc-encoding: got " + Short(value) + ", expected identity, deflate or gzip");
    }
  } else {
    return false;
  }
  return true;
}

// A field may contain several values, separated by commas.
void RequestHeaders::AddBinary(std::string_view name, std::string_view values) {
  const Piece kept = Keep(name);
  while (true) {
    const std::size_t comma = values.find(',');
    std::string decoded;
    if (!DecodeBase64(values.substr(0, comma), &decoded)) {
      Refuse(StatusCode::kInternal, "metadata: got a value of " + Short(name) +
                                        " that is not base64, which its key promises");
      return;
    }
    fields_.push_back({kept, Keep(decoded)});
    if (comma == std::string_view::npos) return;
    values.remove_prefix(comma + 1);
  }
}

void RequestHeaders::Refuse(StatusCode code, std::string text) {
  if (failure_.ok()) failure_ = {code, std::move(text), 0};
}

std::string_view RequestHeaders::Metadata(std::string_view key) const {
  for (const Field& field : fields_) {
    if (Text(field.name) == key) return Text(field.value);
  }
  return {};
}

int RequestHeaders::Count(std::string_view key) const {
  int count = 0;
  for (const Field& field : fields_) count += Text(field.name) == key;
  return count;
}

}  // namespace recsys::http2
