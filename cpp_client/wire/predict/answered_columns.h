#ifndef RECSYS_WIRE_PREDICT_ANSWERED_COLUMNS_H_
#define RECSYS_WIRE_PREDICT_ANSWERED_COLUMNS_H_

// The inputs of many requests of one model, put together column by column. Shape letters: R rows of
// all requests, N IDs or texts of one input in all of them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// One dense input. A request that gives it once for all its rows has it in the first alone.
struct DenseColumn {
  std::string name;
  std::int64_t width = 1;
  /// uint8 [R]: whether a row has numbers.
  std::string has = {};
  /// float32 [R, width]; zeros in rows without numbers.
  std::string values = {};
};

/// One sparse input; as a DenseColumn for requests that give it once.
struct SparseColumn {
  std::string name;
  /// uint8 [R]: whether a row has IDs; int32 [R]: how many; int64 [N]: which.
  std::string has_ids = {}, lengths = {}, values = {};
  /// float32 [N], of IDs and texts, row by row; empty without weights.
  std::string weights = {};
  /// uint8 [R]: whether a row has texts; int32 [R]: how many; int32 [N]: the bytes of each; they.
  /// All empty where no request has texts.
  std::string has_texts = {}, text_lengths = {}, sizes = {}, texts = {};
};

/// Appends the inputs of serialized recsys.v1.PredictRequests, as AnsweredEvent has them. Throws
/// Error (kRequest) if one is none, or lacks a column's input.
void AppendAnswered(const std::vector<std::string_view>& messages, std::vector<DenseColumn>* dense,
                    std::vector<SparseColumn>* sparse);

}  // namespace recsys

#endif  // RECSYS_WIRE_PREDICT_ANSWERED_COLUMNS_H_
