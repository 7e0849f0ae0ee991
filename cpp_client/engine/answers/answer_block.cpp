#include "engine/answers/answer_block.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace recsys {
namespace {

constexpr std::size_t kIdBytes = 8, kFloatBytes = 4, kOffsetBytes = 4;
// Numbers of a request besides its texts, outputs and inputs.
constexpr std::int64_t kRequestBytes = 32;

std::int32_t LastOf(const Column& offsets) {
  std::int32_t last = 0;
  std::memcpy(&last, offsets.data() + offsets.size() - sizeof(last), sizeof(last));
  return last;
}

/// Marks the rows of a request that have an input: the first, or all. `num_before`: rows of earlier
/// requests, which all have it if there are no marks yet.
void Mark(bool once, std::int64_t num_rows, std::int64_t num_before, Column* has) {
  if (has->empty()) {
    if (!once || num_rows == 1) return;
    has->Fill(static_cast<std::size_t>(num_before), 1);
  }
  const std::int64_t num_with = once ? 1 : num_rows;
  has->Fill(static_cast<std::size_t>(num_with), 1);
  has->Fill(static_cast<std::size_t>(num_rows - num_with), 0);
}

/// Appends the ends of a request's bags, of which `once` has one, and the rest none.
void AppendEnds(const char* lengths, bool once, std::int64_t num_rows, Column* offsets) {
  std::int32_t end = LastOf(*offsets);
  char* at = offsets->Grow(kOffsetBytes * static_cast<std::size_t>(num_rows));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (row == 0 || !once) {
      std::int32_t length = 0;
      std::memcpy(&length, lengths + 4 * row, sizeof(length));
      end += length;
    }
    std::memcpy(at, &end, sizeof(end));
    at += sizeof(end);
  }
}

/// Writes the offsets of so many lists of one.
void FillOnes(std::int64_t num_lists, Column* offsets) {
  char* at = offsets->Grow(kOffsetBytes * static_cast<std::size_t>(num_lists + 1));
  for (std::int32_t offset = 0; offset <= num_lists; ++offset) {
    std::memcpy(at + kOffsetBytes * static_cast<std::size_t>(offset), &offset, sizeof(offset));
  }
}

/// Returns whether a row of one ID adds nothing but the ID to an input's columns, as most do.
bool TakesOne(const SparseView& view, const SparseColumns& columns) {
  return view.num_ids == 1 && view.weights == nullptr && columns.offsets.empty() &&
         !columns.hashes_texts;
}

const RawSparse* Find(const std::vector<RawSparse>& inputs, std::string_view name) {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [name](const RawSparse& input) { return input.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

}  // namespace

AnswerBlock::AnswerBlock(std::shared_ptr<const VersionShape> shape, bool has_inputs)
    : shape_(std::move(shape)), has_inputs_(has_inputs) {
  const Signature& signature = shape_->signature;
  requests_.id_offsets.Push(std::int32_t{0});
  requests_.outputs.resize(signature.outputs.size());
  if (!has_inputs) return;
  dense_.resize(signature.dense.size());
  sparse_.resize(signature.sparse.size());
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    dense_[i].row_bytes = kFloatBytes * static_cast<std::size_t>(signature.dense[i].width);
  }
  for (std::size_t i = 0; i < sparse_.size(); ++i) {
    sparse_[i].hashes_texts = !signature.sparse[i].strings.empty();
  }
}

void AnswerBlock::Add(const Request& request, double time_s) {
  const std::int64_t num_rows = request.checked.num_rows;
  requests_.times.Push(time_s);
  requests_.draws.Push(request.answered_draw);
  requests_.num_rows.Push(num_rows);
  requests_.ids.Append(request.request_id);
  requests_.id_offsets.Push(static_cast<std::int32_t>(requests_.ids.size()));
  std::vector<const char*>& names = requests_.protocol_names;
  const auto found = std::find(names.begin(), names.end(), request.protocol);
  requests_.protocols.Push(static_cast<std::uint8_t>(found - names.begin()));
  if (found == names.end()) names.push_back(request.protocol);
  num_bytes_ += kRequestBytes + static_cast<std::int64_t>(request.request_id.size());
  AddOutputs(request);
  if (has_inputs_ && num_rows > 0) {
    AddDense(request);
    AddSparse(request);
    num_rows_ += num_rows;
  }
  ++num_requests_;
}

void AnswerBlock::Clear() {
  num_requests_ = num_rows_ = num_bytes_ = 0;
  for (Column* column : {&requests_.times, &requests_.draws, &requests_.num_rows,
                         &requests_.id_offsets, &requests_.ids, &requests_.protocols}) {
    column->Clear();
  }
  requests_.id_offsets.Push(std::int32_t{0});
  requests_.protocol_names.clear();
  for (Column& output : requests_.outputs) output.Clear();
  for (DenseColumns& columns : dense_) {
    columns.has.Clear();
    columns.values.Clear();
  }
  for (SparseColumns& columns : sparse_) {
    for (Column* column :
         {&columns.values, &columns.offsets, &columns.has, &columns.weights, &columns.text_offsets,
          &columns.has_texts, &columns.text_ends, &columns.texts}) {
      column->Clear();
    }
  }
}

void AnswerBlock::AddOutputs(const Request& request) {
  std::string_view rest = request.outputs;
  num_bytes_ += static_cast<std::int64_t>(rest.size());
  const std::vector<Output>& outputs = shape_->signature.outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    // The executor has checked that each has that many.
    const std::size_t num_bytes =
        static_cast<std::size_t>(outputs[i].num_elements(request.checked.num_rows)) *
        outputs[i].element_bytes();
    requests_.outputs[i].Append(rest.substr(0, num_bytes));
    rest.remove_prefix(num_bytes);
  }
}

void AnswerBlock::AddDense(const Request& request) {
  const CheckedRequest& checked = request.checked;
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    const DenseView& view = checked.dense[i];
    const bool once = view.repeat || (checked.has_context && shape_->dense_in_context[i]);
    const std::size_t num_bytes =
        dense_[i].row_bytes * static_cast<std::size_t>(once ? 1 : checked.num_rows);
    Mark(once, checked.num_rows, num_rows_, &dense_[i].has);
    dense_[i].values.Append(view.values, num_bytes);
    num_bytes_ += static_cast<std::int64_t>(num_bytes);
  }
}

void AnswerBlock::AddSparse(const Request& request) {
  const CheckedRequest& checked = request.checked;
  const SparseView* context = checked.context.data();
  const SparseView* rows = checked.sparse.data();
  std::int64_t num_single = 0;
  for (std::size_t i = 0; i < sparse_.size(); ++i) {
    const bool apart = checked.has_context && shape_->sparse_in_context[i];
    const SparseView& view = apart ? *context++ : *rows++;
    if (checked.num_rows == 1 && TakesOne(view, sparse_[i])) {
      std::memcpy(sparse_[i].values.Grow(kIdBytes), view.values, kIdBytes);
      ++num_single;
      continue;
    }
    const bool once = apart || view.repeat;
    AddBags(view, once, checked.num_rows, &sparse_[i]);
    if (sparse_[i].hashes_texts) {
      const std::string& name = shape_->signature.sparse[i].name;
      const RawSparse* given = Find(once ? request.raw.context_sparse : request.raw.sparse, name);
      AddTexts(given, view, once, checked.num_rows, &sparse_[i]);
    }
  }
  num_bytes_ += 8 * num_single;
}

void AnswerBlock::AddBags(const SparseView& view, bool once, std::int64_t num_rows,
                          SparseColumns* columns) {
  const auto num_ids = static_cast<std::size_t>(view.num_ids);
  num_bytes_ += 8 * view.num_ids;
  if (num_rows != 1 || num_ids != 1 || !columns->offsets.empty()) {
    num_bytes_ += 4 * num_rows;
    if (columns->offsets.empty()) {
      num_bytes_ += 4 * (num_rows_ + 1);
      FillOnes(num_rows_, &columns->offsets);
    }
    Mark(once, num_rows, num_rows_, &columns->has);
    AppendEnds(view.lengths, once, num_rows, &columns->offsets);
  }
  columns->values.Append(view.values, kIdBytes * num_ids);
  if (view.weights == nullptr) return;
  columns->weights.Append(view.weights, kFloatBytes * num_ids);
  num_bytes_ += 4 * view.num_ids;
}

void AnswerBlock::AddTexts(const RawSparse* given, const SparseView& view, bool once,
                           std::int64_t num_rows, SparseColumns* columns) {
  const bool is_text = given != nullptr && given->texts.num_texts > 0;
  if (columns->text_offsets.empty()) {
    if (!is_text) return;
    columns->text_offsets.Fill(kOffsetBytes * static_cast<std::size_t>(num_rows_ + 1), 0);
    columns->has_texts.Fill(static_cast<std::size_t>(num_rows_), 0);
    columns->text_ends.Push(std::int32_t{0});
  }
  num_bytes_ += 5 * num_rows;
  columns->has_texts.Fill(static_cast<std::size_t>(num_rows), is_text ? 1 : 0);
  if (!is_text) {
    const std::int32_t end = LastOf(columns->text_offsets);
    for (std::int64_t row = 0; row < num_rows; ++row) columns->text_offsets.Push(end);
    return;
  }
  AppendEnds(view.lengths, once, num_rows, &columns->text_offsets);
  given->texts.ForEach([this, columns](std::string_view text) {
    columns->texts.Append(text);
    columns->text_ends.Push(static_cast<std::int32_t>(columns->texts.size()));
    num_bytes_ += 4 + static_cast<std::int64_t>(text.size());
  });
}

}  // namespace recsys
