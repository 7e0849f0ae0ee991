#ifndef RECSYS_OPS_ROW_WISE_H_
#define RECSYS_OPS_ROW_WISE_H_

#include <cstdint>

namespace recsys::ops {

/// One lookup of S slots with B bags each to learn from, as recsys/kernels/rowwise.py describes it:
/// N IDs, rows of D numbers, R rows of all shards. Owns nothing; everything is contiguous.
struct RowWiseStep {
  float* weight;                   // [R, D]
  float* state;                    // [R]
  const std::int64_t* values;      // [N], slot-major
  const std::int64_t* offsets;     // [S * B + 1], from 0 to N, never falling
  const std::int64_t* first_rows;  // [S]
  const float* weights;            // [N], or null
  std::int64_t num_rows;           // R
  std::int64_t dim;                // D
  std::int64_t num_slots;          // S
  std::int64_t num_bags;           // B
  const bool* means;               // [S], the slots whose bags are averaged
  bool is_pooled;
  float learning_rate;
  float eps;
};

/// Writes the vectors, [B, S * D] if is_pooled, else [N, D]. Throws std::out_of_range for an ID
/// that is not below R.
void LookUpRows(const RowWiseStep& step, float* vectors);

/// Updates each looked-up row once, by the sum of its gradients, which have the vectors' shape.
/// Throws std::out_of_range for an ID that is not below R; rows of slots before it are updated
/// then.
void UpdateRows(const RowWiseStep& step, const float* gradient);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_ROW_WISE_H_
