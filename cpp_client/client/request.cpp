#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "recsys/client.h"
#include "wire/predict_messages.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire's numbers are little-endian, and are copied as they lie in memory"
#endif

namespace recsys {
namespace {

template <typename T>
std::string_view BytesOf(Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

[[noreturn]] void Refuse(const std::string& at, const std::string& text) {
  throw Error(ErrorKind::kRequest, at + ": " + text);
}

std::string At(const char* kind, const std::string& name) {
  return std::string(kind) + "[" + Repr(name) + "]";
}

/// Bags that were given row by row.
template <typename Value>
struct FlatRows {
  std::vector<std::int32_t> lengths;
  std::vector<Value> values;
  std::vector<float> weights;
};

void CheckWeights(const std::string& at, std::size_t num_weights, std::size_t num_ids) {
  if (num_weights != 0 && num_weights != num_ids) {
    Refuse(at, "got " + std::to_string(num_weights) +
                   " weights, expected one per ID: " + std::to_string(num_ids));
  }
}

void CheckRows(const std::string& at, std::size_t got, std::int64_t expected) {
  if (got != static_cast<std::size_t>(expected)) {
    Refuse(at, "got " + std::to_string(got) + " rows, expected " + std::to_string(expected) +
                   ", as many as the request has");
  }
}

void CheckLengths(const std::string& at, Span<const std::int32_t> lengths, std::size_t num_ids) {
  std::int64_t sum = 0;
  for (const std::int32_t length : lengths) {
    if (length < 0)
      Refuse(at, "got the length " + std::to_string(length) + ", expected at least 0");
    sum += length;
  }
  if (static_cast<std::size_t>(sum) != num_ids) {
    Refuse(at, "got " + std::to_string(num_ids) + " IDs, expected " + std::to_string(sum) +
                   ", the sum of the lengths");
  }
}

/// `Value`: what the rows' entries are kept as.
template <typename Value, typename Entry>
FlatRows<Value> Flat(const std::string& name, const std::vector<std::vector<Entry>>& rows,
                     const std::vector<std::vector<float>>& weights, std::int64_t num_rows) {
  CheckRows(At("sparse", name), rows.size(), num_rows);
  if (!weights.empty()) CheckRows(At("weights", name), weights.size(), num_rows);
  FlatRows<Value> flat;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    flat.lengths.push_back(static_cast<std::int32_t>(rows[row].size()));
    flat.values.insert(flat.values.end(), rows[row].begin(), rows[row].end());
    if (weights.empty()) continue;
    if (weights[row].size() != rows[row].size()) {
      Refuse(At("weights", name), "got " + std::to_string(weights[row].size()) + " in row " +
                                      std::to_string(row) +
                                      ", expected one per ID: " + std::to_string(rows[row].size()));
    }
    flat.weights.insert(flat.weights.end(), weights[row].begin(), weights[row].end());
  }
  return flat;
}

/// Returns the length of a context's only bag.
std::int32_t LengthOf(const std::string& at, std::size_t num_ids, std::size_t num_weights) {
  if (num_ids > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    Refuse(at, "got " + std::to_string(num_ids) + " IDs, expected fewer in one row");
  }
  CheckWeights(at, num_weights, num_ids);
  return static_cast<std::int32_t>(num_ids);
}

}  // namespace

ClientRequest::ClientRequest(std::int64_t num_rows) : num_rows_(num_rows) {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (num_rows < 0 || num_rows > kMostRows) {
    Refuse("num_rows",
           "got " + std::to_string(num_rows) + ", expected 0 to " + std::to_string(kMostRows));
  }
}

ClientRequest& ClientRequest::AddDense(const std::string& name, Span<const float> values) {
  const auto rows = static_cast<std::size_t>(num_rows_);
  if (rows == 0 ? !values.empty() : values.size() % rows != 0) {
    Refuse(At("dense", name), "got " + std::to_string(values.size()) + " numbers, expected [" +
                                  std::to_string(num_rows_) + ", width]");
  }
  AppendInput(kDense, RawDense{name, BytesOf(values)}, &packed_);
  return *this;
}

ClientRequest& ClientRequest::AddSparse(const std::string& name, Span<const std::int32_t> lengths,
                                        Span<const std::int64_t> values,
                                        Span<const float> weights) {
  const std::string at = At("sparse", name);
  CheckRows(at, lengths.size(), num_rows_);
  CheckLengths(at, lengths, values.size());
  CheckWeights(at, weights.size(), values.size());
  AppendInput(kSparse, RawSparse{name, BytesOf(lengths), BytesOf(values), BytesOf(weights)},
              &packed_);
  return *this;
}

ClientRequest& ClientRequest::AddSparse(const std::string& name,
                                        const std::vector<std::vector<std::int64_t>>& rows,
                                        const std::vector<std::vector<float>>& weights) {
  const auto flat = Flat<std::int64_t>(name, rows, weights, num_rows_);
  return AddSparse(name, flat.lengths, flat.values, flat.weights);
}

ClientRequest& ClientRequest::AddTexts(const std::string& name, Span<const std::int32_t> lengths,
                                       Span<const std::string_view> texts,
                                       Span<const float> weights) {
  const std::string at = At("sparse", name);
  CheckRows(at, lengths.size(), num_rows_);
  CheckLengths(at, lengths, texts.size());
  CheckWeights(at, weights.size(), texts.size());
  AppendInput(kSparse, RawSparse{name, BytesOf(lengths), {}, BytesOf(weights), RawTexts::Of(texts)},
              &packed_);
  return *this;
}

ClientRequest& ClientRequest::AddTexts(const std::string& name,
                                       const std::vector<std::vector<std::string>>& rows,
                                       const std::vector<std::vector<float>>& weights) {
  const auto flat = Flat<std::string_view>(name, rows, weights, num_rows_);
  return AddTexts(name, flat.lengths, flat.values, flat.weights);
}

ClientRequest& ClientRequest::AddContextDense(const std::string& name, Span<const float> values) {
  AppendInput(kContextDense, RawDense{name, BytesOf(values)}, &packed_);
  return *this;
}

ClientRequest& ClientRequest::AddContextSparse(const std::string& name,
                                               Span<const std::int64_t> values,
                                               Span<const float> weights) {
  const std::int32_t length = LengthOf(At("context_sparse", name), values.size(), weights.size());
  AppendInput(kContextSparse,
              RawSparse{name, BytesOf(Span<const std::int32_t>(&length, 1)), BytesOf(values),
                        BytesOf(weights)},
              &packed_);
  return *this;
}

ClientRequest& ClientRequest::AddContextTexts(const std::string& name,
                                              Span<const std::string_view> texts,
                                              Span<const float> weights) {
  const std::int32_t length = LengthOf(At("context_sparse", name), texts.size(), weights.size());
  AppendInput(kContextSparse,
              RawSparse{name,
                        BytesOf(Span<const std::int32_t>(&length, 1)),
                        {},
                        BytesOf(weights),
                        RawTexts::Of(texts)},
              &packed_);
  return *this;
}

ClientRequest& ClientRequest::SetRequestId(std::string request_id) {
  constexpr std::size_t kMostBytes = 128;
  if (request_id.size() > kMostBytes || !IsUtf8(request_id)) {
    Refuse("request_id", "got " + Short(request_id) + ", expected at most 128 bytes of UTF-8");
  }
  request_id_ = std::move(request_id);
  return *this;
}

ClientRequest& ClientRequest::SetPriority(Priority priority) {
  priority_ = priority;
  return *this;
}

}  // namespace recsys
