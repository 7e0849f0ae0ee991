#ifndef RECSYS_TESTS_REQUEST_TABLE_H_
#define RECSYS_TESTS_REQUEST_TABLE_H_

// The table of requests that Python's tests make (tests/cases/requests.py).

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "format/json/json.h"
#include "format/json/signature_json.h"
#include "recsys/model.h"
#include "recsys/request.h"

namespace recsys {

inline std::string BytesOf(const Json& hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  const auto& digits = hex.get_ref<const std::string&>();
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(digit(digits[i]) * 16 + digit(digits[i + 1]));
  }
  return bytes;
}

/// A request of the table, and the memory that its views point into: at an odd address, as on the
/// wire.
class TableRequest {
 public:
  explicit TableRequest(const Json& data) {
    raw_.num_rows = data["num_rows"].get<std::int64_t>();
    Dense(data, "dense", &raw_.dense);
    Dense(data, "context_dense", &raw_.context_dense);
    Sparse(data, "sparse", &raw_.sparse);
    Sparse(data, "context_sparse", &raw_.context_sparse);
  }
  const RawRequest& raw() const { return raw_; }

 private:
  std::string_view Keep(const std::string& text) {
    kept_.push_back(std::make_unique<std::string>("." + text));
    return std::string_view(*kept_.back()).substr(1);
  }
  void Dense(const Json& data, const char* key, std::vector<RawDense>* to) {
    if (!data.contains(key)) return;
    for (const Json& item : data[key]) {
      const RawDense input{Keep(item["name"].get<std::string>()), Keep(BytesOf(item["values"]))};
      to->insert(to->end(), item.value("times", std::size_t{1}), input);
    }
  }
  void Sparse(const Json& data, const char* key, std::vector<RawSparse>* to) {
    if (!data.contains(key)) return;
    for (const Json& item : data[key]) {
      RawSparse input{Keep(item["name"].get<std::string>()), Keep(BytesOf(item["lengths"])),
                      Keep(BytesOf(item["values"])), Keep(BytesOf(item["weights"]))};
      if (item.contains("strings")) {
        kept_texts_.push_back(std::make_unique<std::vector<std::string_view>>());
        for (const Json& text : item["strings"]) kept_texts_.back()->push_back(Keep(BytesOf(text)));
        input.texts = RawTexts::Of(*kept_texts_.back());
      }
      to->insert(to->end(), item.value("times", std::size_t{1}), input);
    }
  }

  RawRequest raw_;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::vector<std::unique_ptr<std::vector<std::string_view>>> kept_texts_;
};

class Table {
 public:
  static const Table& Get() {
    static const Table table;
    return table;
  }
  const Json& cases() const { return data_["cases"]; }
  const Json& batches() const { return data_["batches"]; }
  const Json& Case(const std::string& name) const {
    for (const Json& found : cases()) {
      if (found["name"] == name) return found;
    }
    throw std::out_of_range(name);
  }
  RequestChecker CheckerOf(const Json& item) const {
    const std::string name = item["signature"].get<std::string>();
    const auto limit = [&](const char* key) {
      return item.value(key, data_[key].get<std::int64_t>());
    };
    return RequestChecker(SignatureFromJson(data_["signatures"][name]),
                          {limit("max_rows"), limit("max_ids"), limit("max_bytes")},
                          item.value("allow_non_finite", false));
  }

 private:
  Table() {
    std::ifstream file(RECSYS_TEST_CASES "/requests.json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    data_ = ParseJson(text);
  }
  Json data_;
};

/// The batch's arguments of the graph as bytes, in the order in which the graph takes them.
inline std::vector<std::string> ArgumentsOf(const Batch& batch, bool is_weighted) {
  std::vector<std::string> found;
  const auto add = [&](auto values) {
    found.emplace_back(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof(values[0]));
  };
  const auto add_sparse = [&](const SparseBatch& sparse) {
    add(sparse.lengths);
    add(sparse.values);
    if (is_weighted) add(sparse.weights);
  };
  for (const Span<float>& dense : batch.dense) add(dense);
  if (batch.is_ranking) add_sparse(batch.context);
  add_sparse(batch.sparse);
  if (batch.is_ranking) add(batch.row_context);
  return found;
}

}  // namespace recsys

#endif  // RECSYS_TESTS_REQUEST_TABLE_H_
