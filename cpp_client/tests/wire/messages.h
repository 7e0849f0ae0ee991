#ifndef RECSYS_TESTS_WIRE_MESSAGES_H_
#define RECSYS_TESTS_WIRE_MESSAGES_H_

// Messages and requests that the tests of this room make.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recsys/error.h"
#include "recsys/request.h"
#include "recsys/signature.h"
#include "wire/writer.h"

namespace recsys {

/// Numbers as the wire has them.
template <typename T>
std::string Packed(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}
inline std::string Floats(const std::vector<float>& values) { return Packed(values); }
inline std::string Int32(const std::vector<std::int32_t>& values) { return Packed(values); }
inline std::string Int64(const std::vector<std::int64_t>& values) { return Packed(values); }

/// A length-delimited field.
inline std::string Field(std::uint32_t field, std::string_view value) {
  Writer writer;
  writer.Delimited(field, value);
  return writer.Finish().Joined();
}
/// A varint field.
inline std::string Number(std::uint32_t field, std::uint64_t number) {
  Writer writer;
  writer.VarintField(field, number);
  return writer.Finish().Joined();
}

inline std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

/// Two dense inputs, four sparse ones of which one is weighted, two outputs.
inline Signature SmallSignature() {
  Signature signature;
  signature.dense = {{"context", 3}, {"price", 1}};
  signature.sparse = {{"user", {{"users", 50, IdPolicy::kReject}}, "sum", false},
                      {"genres", {{"genres", 7, IdPolicy::kZero}}, "mean", false},
                      {"item", {{"items", 11, IdPolicy::kHash}}, "sum", false},
                      {"tags", {{"tags", 9, IdPolicy::kReject}}, "sum", true}};
  signature.outputs = {{"score", {}}, {"vectors", {2, 3}}};
  return signature;
}

/// Texts as Triton packs them: each after its length.
inline std::string Prefixed(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    packed += Packed<std::uint32_t>({static_cast<std::uint32_t>(text.size())}) + text;
  }
  return packed;
}

inline std::vector<std::string> TextsOf(const RawSparse& input) {
  std::vector<std::string> texts;
  input.texts.ForEach([&](std::string_view text) { texts.emplace_back(text); });
  return texts;
}

/// The text of the error that `function` throws; says so where it throws none.
template <typename Function>
std::string ErrorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace recsys

#endif  // RECSYS_TESTS_WIRE_MESSAGES_H_
