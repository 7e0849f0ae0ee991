#include "wire/predict/answered_columns.h"

#include <algorithm>
#include <cstddef>

#include "base/text.h"
#include "recsys/error.h"
#include "recsys/request.h"
#include "wire/predict/predict_request.h"

namespace recsys {
namespace {

constexpr std::size_t kNumberBytes = 4;

/// Returns the input of that name; looks first where it stood in the request before.
template <typename Input>
const Input* Find(const std::vector<Input>& inputs, std::string_view name, std::size_t place) {
  if (place < inputs.size() && inputs[place].name == name) return &inputs[place];
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [name](const Input& input) { return input.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

template <typename Input>
struct Found {
  const Input* input;
  /// Rows that have it: all of the request, or the first.
  std::size_t num_with;
};

template <typename Input>
Found<Input> FindIn(const std::vector<Input>& rows, const std::vector<Input>& context,
                    const std::string& name, std::size_t place, std::size_t num_rows) {
  if (const Input* input = Find(rows, name, place)) return {input, num_rows};
  if (const Input* input = Find(context, name, place)) return {input, 1};
  throw Error(ErrorKind::kRequest, "the request has no input " + Repr(name));
}

void Mark(std::size_t num_with, std::size_t num_rows, std::string* marks) {
  marks->append(num_with, '\1').append(num_rows - num_with, '\0');
}

void Append(const RawSparse& input, std::size_t num_with, std::size_t num_rows,
            SparseColumn* column) {
  const bool has_texts = input.texts.num_texts > 0;
  const std::size_t num_before = column->has_ids.size();
  if (has_texts && column->has_texts.empty()) {
    column->has_texts.assign(num_before, '\0');
    column->text_lengths.assign(kNumberBytes * num_before, '\0');
  }
  Mark(has_texts ? 0 : num_with, num_rows, &column->has_ids);
  const std::size_t rest_bytes = kNumberBytes * (num_rows - num_with);
  if (!has_texts) {
    column->lengths.append(input.lengths).append(rest_bytes, '\0');
    column->values.append(input.values);
  } else {
    column->lengths.append(kNumberBytes * num_rows, '\0');
  }
  column->weights.append(input.weights);
  if (!has_texts && column->has_texts.empty()) return;
  Mark(has_texts ? num_with : 0, num_rows, &column->has_texts);
  if (!has_texts) {
    column->text_lengths.append(kNumberBytes * num_rows, '\0');
    return;
  }
  column->text_lengths.append(input.lengths).append(rest_bytes, '\0');
  input.texts.ForEach([column](std::string_view text) {
    const auto size = static_cast<std::int32_t>(text.size());
    column->sizes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    column->texts.append(text);
  });
}

}  // namespace

void AppendAnswered(const std::vector<std::string_view>& messages, std::vector<DenseColumn>* dense,
                    std::vector<SparseColumn>* sparse) {
  RawRequest raw;
  PredictFields fields;
  for (const std::string_view message : messages) {
    if (!ReadPredictRequest(message, message.size(), &fields, &raw)) {
      throw Error(ErrorKind::kRequest, "the bytes are not a PredictRequest");
    }
    if (raw.num_rows <= 0) continue;
    const auto num_rows = static_cast<std::size_t>(raw.num_rows);
    for (std::size_t i = 0; i < dense->size(); ++i) {
      DenseColumn& column = (*dense)[i];
      const auto [input, num_with] = FindIn(raw.dense, raw.context_dense, column.name, i, num_rows);
      const auto width = static_cast<std::size_t>(column.width);
      Mark(num_with, num_rows, &column.has);
      column.values.append(input->values)
          .append(kNumberBytes * width * (num_rows - num_with), '\0');
    }
    for (std::size_t i = 0; i < sparse->size(); ++i) {
      SparseColumn& column = (*sparse)[i];
      const auto [input, num_with] =
          FindIn(raw.sparse, raw.context_sparse, column.name, i, num_rows);
      Append(*input, num_with, num_rows, &column);
    }
  }
}

}  // namespace recsys
