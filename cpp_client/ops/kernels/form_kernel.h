// Steps by a form, in terms of Lanes: included after linear_kernel.h.

#include <algorithm>
#include <cstdint>

#include "ops/scratch.h"

namespace recsys::ops {
namespace {

/// Numbers of a matrix, [K, N]: columns of 16 that follow each other, each `row_stride` behind the
/// one before it.
struct Panels {
  const float* data = nullptr;
  std::int64_t row_stride = 0, panel_stride = 0;
};

/// Copies a matrix [K, N] so that 16 columns of a row follow each other; zeros fill the last ones.
inline Panels PanelsOf(const float* from, const Form& form) {
  const std::int64_t num_columns = form.sizes[2], depth = form.sizes[3];
  const std::int64_t by_column = form.strides.b[2], by_row = form.strides.b[3];
  if (by_column == 1 && num_columns % kLane == 0) return {from, by_row, kLane};
  const std::int64_t num_panels = (num_columns + kLane - 1) / kLane;
  auto* const data = reinterpret_cast<float*>(
      ScratchOf(Scratch::kPanels, num_panels * depth * kLane * std::int64_t{sizeof(float)}));
  for (std::int64_t panel = 0; panel < num_panels; ++panel) {
    const std::int64_t first = panel * kLane, count = std::min(kLane, num_columns - first);
    const float* const at = from + first * by_column;
    float* const to = data + panel * depth * kLane;
    std::int64_t k = 0;
    if (by_row == 1) {
      for (; k + kLane <= depth; k += kLane) {
        Lanes::Transpose(at + k, by_column, count, to + k * kLane, kLane);
      }
    }
    for (; k < depth; ++k) {
      const float* const row = at + k * by_row;
      float* const to_row = to + k * kLane;
      for (std::int64_t i = 0; i < count; ++i) to_row[i] = row[i * by_column];
      std::fill(to_row + count, to_row + kLane, 0.0F);
    }
  }
  return {data, kLane, depth * kLane};
}

/// Computes kRows rows of kPanels times 16 columns.
template <int kRows, int kPanels>
void Sums(const Form& form, const float* a, const Panels& panels, std::int64_t column, float* out) {
  Lanes::Floats sums[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) sums[r][p] = Lanes::All(0);
  }
  const std::int64_t by_row = form.strides.a[1], by_depth = form.strides.a[3];
  const float* at = panels.data + column / kLane * panels.panel_stride;
  for (std::int64_t k = 0; k < form.sizes[3]; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const Lanes::Floats some = Lanes::Load(at + p * panels.panel_stride);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        sums[r][p] = Lanes::TimesAdd(Lanes::All(a[r * by_row + k * by_depth]), some, sums[r][p]);
      }
    }
    at += panels.row_stride;
  }
  const std::int64_t to_row = form.strides.out[1], to_column = form.strides.out[2];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      const std::int64_t first = column + p * kLane;
      const std::int64_t count = std::min(kLane, form.sizes[2] - first);
      float* const to = out + r * to_row + first * to_column;
      if (to_column == 1 && count == kLane) {
        Lanes::Store(to, sums[r][p]);
        continue;
      }
      float all[kLane];
      Lanes::Store(all, sums[r][p]);
      for (std::int64_t i = 0; i < count; ++i) to[i * to_column] = all[i];
    }
  }
}

template <int kPanels, int kRows = Lanes::kMaxRows>
void SumsOf(std::int64_t num_rows, const Form& form, const float* a, const Panels& panels,
            std::int64_t column, float* out) {
  if (num_rows == kRows) {
    Sums<kRows, kPanels>(form, a, panels, column, out);
  } else if constexpr (kRows > 1) {
    SumsOf<kPanels, kRows - 1>(num_rows, form, a, panels, column, out);
  }
}

inline void SumsOfMatrices(const Form& form, const float* a, const Panels& panels, float* out) {
  const std::int64_t num_rows = form.sizes[1], num_columns = form.sizes[2];
  // Blocks of about the same number of rows.
  const std::int64_t num_blocks = (num_rows + Lanes::kMaxRows - 1) / Lanes::kMaxRows;
  for (std::int64_t column = 0; column < num_columns; column += 2 * kLane) {
    for (std::int64_t i = 0; i < num_blocks; ++i) {
      const std::int64_t row = num_rows * i / num_blocks;
      const std::int64_t count = num_rows * (i + 1) / num_blocks - row;
      const float* const from = a + row * form.strides.a[1];
      float* const to = out + row * form.strides.out[1];
      if (column + kLane < num_columns) {
        SumsOf<2>(count, form, from, panels, column, to);
      } else {
        SumsOf<1>(count, form, from, panels, column, to);
      }
    }
  }
}

/// Computes matrices [M, K] of all rows times the same one.
inline void SumsOfRows(const Formed& step, const float* a, const Panels& panels, OutRows out) {
  Form form = *step.form;
  std::int64_t num_products = step.num_rows;
  const Strides& by = form.strides;
  const bool are_neighbors =
      step.a.stride == form.sizes[1] * by.a[1] && out.stride == form.sizes[1] * by.out[1];
  if (form.sizes[1] == 1 || are_neighbors) {
    // As one matrix: weights, which are read for each of its blocks, are read less often.
    if (form.sizes[1] == 1) {
      form.strides.a[1] = step.a.stride;
      form.strides.out[1] = out.stride;
    }
    form.sizes[1] *= num_products;
    num_products = 1;
  }
  for (std::int64_t row = 0; row < num_products; ++row) {
    SumsOfMatrices(form, a + row * step.a.stride, panels, out.data + row * out.stride);
  }
}

void Contract(const Formed& step, OutRows out) {
  const Form& form = *step.form;
  const Strides& strides = form.strides;
  const bool is_shared = step.b.stride == 0;
  Panels panels;
  if (is_shared) {
    for (std::int64_t g = 0; g < form.sizes[0]; ++g) {
      // What is the same for every row and matrix is copied once.
      if (g == 0 || strides.b[0] != 0) panels = PanelsOf(step.b.data + g * strides.b[0], form);
      SumsOfRows(step, step.a.data + g * strides.a[0], panels,
                 {out.data + g * strides.out[0], out.stride});
    }
    return;
  }
  for (std::int64_t row = 0; row < step.num_rows; ++row) {
    for (std::int64_t g = 0; g < form.sizes[0]; ++g) {
      panels = PanelsOf(step.b.data + row * step.b.stride + g * strides.b[0], form);
      SumsOfMatrices(form, step.a.data + row * step.a.stride + g * strides.a[0], panels,
                     out.data + row * out.stride + g * strides.out[0]);
    }
  }
}

/// Computes out[i] = combine(a[i], b[i]) in the innermost loop.
template <typename Combine>
void Innermost(const Form& form, const float* a, const float* b, float* out,
               const Combine& combine) {
  const std::int64_t count = form.sizes[3], by_a = form.strides.a[3], by_b = form.strides.b[3];
  const std::int64_t by_out = form.strides.out[3];
  if (by_out == 1 && by_a == 1 && by_b == 1) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = combine(a[i], b[i]);
  } else if (by_out == 1 && by_a == 0 && by_b == 0) {
    std::fill_n(out, count, combine(*a, *b));
  } else if (by_out == 1 && by_a == 0 && by_b == 1) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = combine(*a, b[i]);
  } else if (by_out == 1 && by_a == 1 && by_b == 0) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = combine(a[i], *b);
  } else if (by_out == 1 && by_a == 0 && by_b == 0) {
    std::fill_n(out, count, combine(*a, *b));
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i * by_out] = combine(a[i * by_a], b[i * by_b]);
  }
}

template <typename Combine>
void Loop(const Formed& step, OutRows out, const Combine& combine) {
  const Form& form = *step.form;
  const Strides& by = form.strides;
  for (std::int64_t row = 0; row < step.num_rows; ++row) {
    const float* const a = step.a.data + row * step.a.stride;
    const float* const b = step.b.data + row * step.b.stride;
    float* const to = out.data + row * out.stride;
    for (std::int64_t i = 0; i < form.sizes[0]; ++i) {
      for (std::int64_t j = 0; j < form.sizes[1]; ++j) {
        for (std::int64_t k = 0; k < form.sizes[2]; ++k) {
          Innermost(form, a + i * by.a[0] + j * by.a[1] + k * by.a[2],
                    b + i * by.b[0] + j * by.b[1] + k * by.b[2],
                    to + i * by.out[0] + j * by.out[1] + k * by.out[2], combine);
        }
      }
    }
  }
}

void Broadcast(const Formed& step, OutRows out) {
  const float factor = step.form->factor;
  switch (step.kind) {
    case ElementwiseKind::kAdd:
      return Loop(step, out, [](float a, float b) { return a + b; });
    case ElementwiseKind::kSubtract:
      return Loop(step, out, [](float a, float b) { return a - b; });
    case ElementwiseKind::kMultiply:
      return Loop(step, out, [](float a, float b) { return a * b; });
    case ElementwiseKind::kDivide:
      return Loop(step, out, [](float a, float b) { return b / a; });
    case ElementwiseKind::kLess:
      return Loop(step, out, [](float a, float b) { return a < b ? 1.0F : 0.0F; });
    case ElementwiseKind::kLargest:
      // As torch: NaN stays.
      return Loop(step, out, [](float a, float b) { return a >= b || a != a ? a : b; });
    case ElementwiseKind::kSelect:
      return Loop(step, out, [factor](float a, float b) { return a != 0 ? b : factor; });
    default:
      return Loop(step, out, [](float a, float) { return a; });
  }
}

}  // namespace
}  // namespace recsys::ops
