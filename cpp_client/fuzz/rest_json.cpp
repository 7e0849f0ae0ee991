// Bodies of requests over HTTP: JSON, tensors behind it, and what is compressed; then the checks,
// and a batch of what passes them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fuzz/served.h"
#include "server/core/hosted.h"
#include "server/http/rest_encoding.h"
#include "server/http/rest_infer.h"
#include "server/http/rest_plain.h"
#include "server/http/rest_route.h"

namespace {

using namespace recsys;

constexpr std::size_t kMaxBytes = 1 << 14;

void Expect(bool holds) {
  if (!holds) __builtin_trap();
}

class NoModel : public ServedModel {
 public:
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "cpu"; }
  Outputs Predict(const Batch& /*batch*/) override { return {}; }
  Delta PrepareDelta(const std::string& /*path*/) override { return {}; }

 private:
  const Signature signature_ = FuzzedSignature();
};

/// Never opened: nothing runs in it.
const Hosted& FuzzedModel() {
  static Metrics& metrics = *new Metrics;
  static Hosted& hosted = *[] {
    OpenedModel opened;
    opened.model = std::make_unique<NoModel>();
    opened.info.name = "m";
    opened.info.version = "1";
    return new Hosted(std::move(opened), {}, metrics, [](Request&, const Status&, Message) {});
  }();
  return hosted;
}

void Infer(std::string_view body, std::optional<std::int64_t> num_json_bytes, Served* served) {
  InferBody read(std::string(body), num_json_bytes, kMaxBytes);
  RawRequest raw;
  read.ReadInputs(FuzzedModel(), &raw);
  // Once more, as where the model was closed meanwhile.
  read.ReadInputs(FuzzedModel(), &raw);
  served->Take(raw);
  const std::string zeros(24, '\0');
  const Rows rows{1, {std::string_view(zeros).substr(0, 4), zeros}, nullptr};
  const InferBody::Answer answer = read.Write(FuzzedModel(), rows);
  const std::string written = answer.message.Joined();
  Expect(answer.num_json_bytes <= written.size());
  ParseJsonBody(std::string_view(written).substr(0, answer.num_json_bytes), written.size());
}

void Plain(std::string_view body, Served* served) {
  const JsonValue::Object object = ParseJsonBody(body, kMaxBytes);
  OwnedBytes owned;
  RawRequest raw;
  ReadPlain(object, served->signature(), {}, &owned, &raw);
  served->Take(raw);
}

void Read(std::uint8_t kind, std::string_view body, Served* served) {
  switch (kind % 5) {
    case 0:
      return Plain(body, served);
    case 1:
      return Infer(body, std::nullopt, served);
    case 2:
      // The binary tensors begin behind the first line.
      return Infer(body, std::min(body.find('\n'), body.size()), served);
    case 3:
      Expect(Inflate(body, kMaxBytes).size() <= kMaxBytes);
      return;
    default:
      FindRoute(std::string(body));
      TimeoutOf(std::string(body));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static Served& served = *new Served;
  if (size == 0) return 0;
  try {
    Read(bytes[0], {reinterpret_cast<const char*>(bytes) + 1, size - 1}, &served);
  } catch (const Error& error) {
    Expect(error.kind() == ErrorKind::kRequest || error.kind() == ErrorKind::kRequestTooLarge ||
           error.kind() == ErrorKind::kBodyTooLarge);
  }
  return 0;
}
