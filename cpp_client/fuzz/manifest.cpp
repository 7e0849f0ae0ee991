// Fuzzes untrusted manifests, and headers of deltas and of programs. The digest that protects
// a manifest against damage is corrected, so that the code behind its check is reached.
#include "format/manifest/manifest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/hash/sha256.h"
#include "format/delta_header.h"
#include "format/json/signature_json.h"
#include "format/program_file.h"
#include "format/zip_directory.h"
#include "recsys/error.h"

namespace {

using recsys::Json;

void ReadDelta(const Json& data, std::size_t size) {
  try {
    recsys::DeltaHeaderFromJson(data, static_cast<std::int64_t>(size));
  } catch (const recsys::Error&) {
  }
}

void ReadZip(std::string_view text) {
  try {
    for (const recsys::ZipMember& member : recsys::ZipMembers(text)) {
      recsys::Crc32(recsys::StoredBytes(text, member));
    }
  } catch (const recsys::ZipError&) {
  }
}

/// Returns where the last tensor of a header ends, as far as that is at most `most`.
std::size_t DataBytesOf(std::string_view text, std::uint64_t most) {
  std::uint64_t end = 0;
  const Json header = Json::parse(text, nullptr, false);
  for (const auto& item : header.is_object() ? header : Json::object()) {
    const auto offsets = item.is_object() ? item.find("data_offsets") : item.end();
    if (offsets == item.end() || !offsets->is_array() || offsets->size() != 2) continue;
    const Json& last = (*offsets)[1];
    if (last.is_number_unsigned()) end = std::max(end, std::min(most, last.get<std::uint64_t>()));
  }
  return static_cast<std::size_t>(end);
}

/// Reads the text as the header of a program.
void ReadPlan(std::string_view text) {
  constexpr std::uint64_t kDataBytes = 1 << 14;
  const std::uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += text;
  bytes.resize(bytes.size() + DataBytesOf(text, kDataBytes));
  try {
    const recsys::ProgramFile file = recsys::ReadProgramFile(bytes);
    for (const auto* tensors : {&file.tensors, &file.weights}) {
      for (const auto& [name, tensor] : *tensors) {
        if (tensor.offset > bytes.size() || tensor.num_bytes > bytes.size() - tensor.offset) {
          __builtin_trap();
        }
      }
    }
  } catch (const recsys::Error&) {
  }
}

void ReadManifest(std::string_view text) {
  try {
    const recsys::Manifest manifest = recsys::ReadManifest(text);
    // What the engine writes of a signature must read as the same.
    const Json signature = recsys::SignatureToJson(manifest.signature);
    if (recsys::SignatureToJson(recsys::SignatureFromJson(signature)) != signature) {
      __builtin_trap();
    }
  } catch (const recsys::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  ReadZip(text);
  ReadPlan(text);
  ReadManifest(text);
  Json data;
  try {
    data = recsys::ParseJson(text);
  } catch (const recsys::JsonError&) {
    return 0;
  }
  if (recsys::ParseJson(data.dump()) != data) __builtin_trap();
  ReadDelta(data, size);
  if (!data.is_object()) return 0;
  data.erase("bytes_sha256");
  std::string written = data.dump();
  written.back() = data.empty() ? ' ' : ',';
  const std::string digest = recsys::Sha256Hex(written);
  ReadManifest(written + "\"bytes_sha256\":\"" + digest + "\"}");
  return 0;
}
