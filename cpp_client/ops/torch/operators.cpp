#include "ops/torch/operators.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/yield.h"
#include "format/slots.h"
#include "ops/kernels/kernels.h"
#include "ops/torch/crossed.h"

namespace recsys::ops {
namespace {

// IDs whose buckets are fetched from memory at a time.
constexpr std::int64_t kAtOnce = 16;

at::Tensor Int64(const at::Tensor& tensor, const char* name, std::int64_t num_dims) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kLong && tensor.dim() == num_dims, name, ": got ",
                    tensor.scalar_type(), ' ', tensor.sizes(), ", expected int64 of ", num_dims,
                    " dimensions");
  return tensor.contiguous();
}

/// Returns the row of each raw ID, [N] int64; -1 for those that own none
/// (recsys/managed/frozen.py). `slots`: [Q, 8] int64, the buckets of all tables; `masks`, `starts`:
/// [T] int64, the number of buckets of each table less one, and its first bucket; `tables`: [N]
/// int64, that of each ID; `ids`: [N] int64. Throws c10::Error for others.
at::Tensor MappedRows(const at::Tensor& slots, const at::Tensor& masks, const at::Tensor& starts,
                      const at::Tensor& tables, const at::Tensor& ids) {
  TORCH_CHECK_VALUE(slots.dim() == 2 && slots.size(1) == kBucketNumbers, "slots: got ",
                    slots.sizes(), ", expected [Q, 8]");
  const at::Tensor held = Int64(slots, "slots", 2);
  const at::Tensor mask_of = Int64(masks, "masks", 1), start_of = Int64(starts, "starts", 1);
  const at::Tensor table_of = Int64(tables, "tables", 1), raw_ids = Int64(ids, "ids", 1);
  const std::int64_t num_tables = mask_of.numel(), num = raw_ids.numel();
  TORCH_CHECK_VALUE(start_of.numel() == num_tables && table_of.numel() == num, "tables: got ",
                    table_of.sizes(), " and starts ", start_of.sizes(), ", expected [", num,
                    "] and [", num_tables, ']');
  const auto* const mask = mask_of.const_data_ptr<std::int64_t>();
  const auto* const start = start_of.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < num_tables; ++i) {
    // IDs that are not mapped look into the first two buckets.
    TORCH_CHECK_VALUE(mask[i] >= 0 && start[i] >= 0 && start[i] < slots.size(0) &&
                          std::max<std::int64_t>(mask[i], 1) < slots.size(0) - start[i] &&
                          ((mask[i] + 1) & mask[i]) == 0,
                      "masks: got ", mask[i], " from bucket ", start[i], " on, expected some of ",
                      slots.size(0));
  }
  const auto* const buckets = held.const_data_ptr<std::int64_t>();
  const auto* const table = table_of.const_data_ptr<std::int64_t>();
  const auto* const id = raw_ids.const_data_ptr<std::int64_t>();
  at::Tensor rows = at::empty({num}, at::kLong);
  auto* const row = rows.mutable_data_ptr<std::int64_t>();
  std::array<std::pair<const std::int64_t*, const std::int64_t*>, kAtOnce> places;
  for (std::int64_t first = 0; first < num; first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, num - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t of = table[first + i];
      TORCH_CHECK_VALUE(of >= 0 && of < num_tables, "tables: got ", of, ", expected 0 to ",
                        num_tables - 1);
      const auto both = BucketsOf(id[first + i], static_cast<std::uint64_t>(mask[of]));
      auto& place = places[static_cast<std::size_t>(i)];
      place = {buckets + (start[of] + both.first) * kBucketNumbers,
               buckets + (start[of] + both.second) * kBucketNumbers};
      __builtin_prefetch(place.first);
      __builtin_prefetch(place.second);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& place = places[static_cast<std::size_t>(i)];
      row[first + i] = RowIn(place.first, place.second, id[first + i]);
    }
  }
  return rows;
}

// Fewer rows are not worth waking a thread for.
constexpr std::int64_t kRowsOfThread = 64;
/// Rows of vectors that are put one behind the other at a time.
constexpr std::int64_t kRowsTogether = 16;

Activation ActivationOf(std::string_view name) {
  if (name == "none") return Activation::kNone;
  if (name == "relu") return Activation::kRelu;
  if (name == "sigmoid") return Activation::kSigmoid;
  TORCH_CHECK_VALUE(false, "activation: got '", name, "', expected none, relu or sigmoid");
}

WeightType TypeOf(std::string_view name) {
  if (name == "float32") return WeightType::kFloat32;
  if (name == "bfloat16") return WeightType::kBfloat16;
  if (name == "int8") return WeightType::kInt8;
  TORCH_CHECK_VALUE(false, "dtype: got '", name, "', expected float32, bfloat16 or int8");
}

/// Returns float32 whose last dimension is contiguous and whose others can be viewed as one.
at::Tensor RowsOf(const at::Tensor& input, const char* name) {
  TORCH_CHECK_TYPE(input.scalar_type() == at::kFloat, name, ": got ", input.scalar_type(),
                   ", expected float32");
  TORCH_CHECK_VALUE(input.dim() >= 1, name, ": got no dimension, expected [..., K]");
  if (input.dim() == 2 && input.stride(1) == 1 && input.stride(0) >= input.size(1)) return input;
  return input.reshape({-1, input.size(-1)}).contiguous();
}

}  // namespace

std::string MultipliesIn(const std::string& linear_dtype) {
  const WeightType type = TypeOf(linear_dtype);
  const bool is_wider = type == WeightType::kBfloat16 && !MultipliesBfloat16(ChosenIsa());
  return is_wider ? "float32" : linear_dtype;
}

WeightType DotTypeOf(const std::string& linear_dtype) {
  const WeightType type = TypeOf(linear_dtype);
  if (type != WeightType::kInt8) return PackedTypeFor(type, ChosenIsa());
  return HasBfloat16(ChosenIsa()) ? WeightType::kBfloat16 : WeightType::kFloat32;
}

at::Tensor PackWeights(const at::Tensor& weight, const c10::optional<at::Tensor>& bias,
                       c10::string_view dtype) {
  const at::Tensor weights = weight.detach().to(at::kFloat).contiguous();
  const bool has_bias = bias.has_value() && bias->defined();
  const at::Tensor biases = has_bias ? bias->detach().to(at::kFloat).contiguous() : at::Tensor();
  const FloatLayer layer{weights.const_data_ptr<float>(),
                         has_bias ? biases.const_data_ptr<float>() : nullptr, weights.size(0),
                         weights.size(1)};
  const WeightType type = TypeOf({dtype.data(), dtype.size()});
  at::Tensor packed = at::empty(
      {PackedBytes(PackedTypeFor(type, ChosenIsa()), layer.num_inputs, layer.num_outputs)},
      at::kByte);
  PackTo(packed.mutable_data_ptr<std::uint8_t>(), layer, type, ChosenIsa(), YieldIfDue);
  return packed;
}

bool IsFinite(const at::Tensor& weight) {
  const at::Tensor numbers = weight.contiguous();
  const auto* const from = static_cast<const char*>(numbers.const_data_ptr());
  // Blocks of a constant size: compilers compute these side by side.
  constexpr std::int64_t kBlock = 16;
  constexpr std::int64_t kNumbersPerYield = kBytesPerYield / 4;
  std::int32_t largest[kBlock] = {};
  for (std::int64_t i = 0; i < numbers.numel(); i += kBlock) {
    if (i % kNumbersPerYield == 0) YieldIfDue();
    std::int32_t bits[kBlock] = {};
    const std::int64_t count = std::min(kBlock, numbers.numel() - i);
    if (count == kBlock) {
      std::memcpy(bits, from + i * 4, sizeof(bits));
    } else {
      std::memcpy(bits, from + i * 4, static_cast<std::size_t>(count) * 4);
    }
    for (std::int64_t j = 0; j < kBlock; ++j) {
      largest[j] = std::max(largest[j], bits[j] & 0x7fffffff);
    }
  }
  // From here on numbers are infinite, or none.
  return *std::max_element(std::begin(largest), std::end(largest)) < 0x7f800000;
}

Packed WeightsOf(at::Tensor* packed) {
  TORCH_CHECK_TYPE(packed->scalar_type() == at::kByte && packed->dim() == 1, "packed: got ",
                   packed->scalar_type(), ' ', packed->sizes(), ", expected bytes of pack_linear");
  const bool is_placed = packed->is_contiguous() &&
                         reinterpret_cast<std::uintptr_t>(packed->const_data_ptr()) % 64 == 0;
  if (!is_placed) *packed = packed->clone(at::MemoryFormat::Contiguous);
  Packed weights;
  const std::string error = ReadPacked(packed->const_data_ptr(), packed->numel(), &weights);
  TORCH_CHECK_VALUE(error.empty(), "packed: ", error);
  return weights;
}

namespace {

at::Tensor PackLinear(const at::Tensor& weight, const c10::optional<at::Tensor>& bias,
                      c10::string_view dtype) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "weight: got ", weight.sizes(), ", expected [N, K]");
  TORCH_CHECK_VALUE(IsPackable(weight.size(0), weight.size(1)), "weight: got ", weight.sizes(),
                    ", expected 1 to ", kMaxOutputs, " outputs and 1 to ", kMaxInputs, " inputs");
  TORCH_CHECK_VALUE(!bias.has_value() || !bias->defined() ||
                        (bias->dim() == 1 && bias->size(0) == weight.size(0)),
                    "bias: expected [", weight.size(0), "]");
  TORCH_CHECK_VALUE(IsFinite(weight.detach().to(at::kFloat)),
                    "weight: got NaN or infinity, expected finite numbers");
  return PackWeights(weight, bias, dtype);
}

at::Tensor LinearOp(const at::Tensor& input, const at::Tensor& packed, std::int64_t out_features,
                    c10::string_view activation) {
  const Activation kind = ActivationOf({activation.data(), activation.size()});
  const at::Tensor rows = RowsOf(input, "input");
  at::Tensor bytes = packed;
  const Packed weights = WeightsOf(&bytes);
  TORCH_CHECK_VALUE(rows.size(1) == weights.num_inputs, "input: got ", input.sizes(),
                    ", expected [..., ", weights.num_inputs, ']');
  TORCH_CHECK_VALUE(out_features == weights.num_outputs, "out_features: got ", out_features,
                    ", expected ", weights.num_outputs);
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape.back() = out_features;
  at::Tensor output = at::empty(shape, input.options());
  const Rows from{rows.const_data_ptr<float>(), rows.stride(0)};
  float* const to = output.mutable_data_ptr<float>();
  const Kernels& kernels = ChosenKernels();
  at::parallel_for(0, rows.size(0), kRowsOfThread, [&](std::int64_t begin, std::int64_t end) {
    kernels.linear(weights, {from.data + begin * from.stride, from.stride}, end - begin, kind,
                   {to + begin * out_features, out_features}, nullptr);
  });
  return output;
}

/// The same with operators of torch, for other types than float32.
at::Tensor DotOfTorch(const at::Tensor& dense, const at::Tensor& sparse) {
  const at::Tensor vectors = at::cat({dense.unsqueeze(1), sparse}, 1);
  const std::int64_t num = vectors.size(1);
  const at::Tensor above = at::triu_indices(num, num, 1);
  const at::Tensor products = at::bmm(vectors, vectors.transpose(1, 2)).flatten(1);
  return at::cat({dense, products.index_select(1, above[0] * num + above[1])}, 1);
}

at::Tensor DotOp(const at::Tensor& dense, const at::Tensor& sparse) {
  TORCH_CHECK_VALUE(dense.dim() == 2 && sparse.dim() == 3 && sparse.size(0) == dense.size(0) &&
                        sparse.size(2) == dense.size(1),
                    "sparse: got ", sparse.sizes(), " beside dense ", dense.sizes(),
                    ", expected [B, F, D] beside [B, D]");
  if (dense.scalar_type() != at::kFloat || sparse.scalar_type() != at::kFloat) {
    return DotOfTorch(dense, sparse);
  }
  const std::int64_t num_rows = dense.size(0), dim = dense.size(1), num = sparse.size(1) + 1;
  const at::Tensor first = dense.contiguous(), others = sparse.contiguous();
  const std::int64_t width = dim + num * (num - 1) / 2;
  at::Tensor output = at::empty({num_rows, width}, dense.options());
  const float* const a = first.const_data_ptr<float>();
  const float* const b = others.const_data_ptr<float>();
  float* const to = output.mutable_data_ptr<float>();
  const Kernels& kernels = ChosenKernels();
  at::parallel_for(0, num_rows, kRowsOfThread, [&](std::int64_t begin, std::int64_t end) {
    thread_local std::vector<float> vectors;
    vectors.resize(static_cast<std::size_t>(kRowsTogether * num * dim));
    for (std::int64_t row = begin; row < end; row += kRowsTogether) {
      const std::int64_t count = std::min(kRowsTogether, end - row);
      for (std::int64_t i = 0; i < count; ++i) {
        float* const of_row = vectors.data() + i * num * dim;
        std::copy_n(a + (row + i) * dim, dim, of_row);
        std::copy_n(b + (row + i) * (num - 1) * dim, (num - 1) * dim, of_row + dim);
        std::copy_n(a + (row + i) * dim, dim, to + (row + i) * width);
      }
      kernels.dot(WeightType::kFloat32, {vectors.data(), num * dim}, count, {num, dim},
                  {to + row * width + dim, width});
    }
  });
  return output;
}

at::Tensor DotShape(const at::Tensor& dense, const at::Tensor& sparse) {
  const c10::SymInt num = sparse.sym_size(1) + 1;
  return at::empty_symint({dense.sym_size(0), dense.sym_size(1) + num * (num - 1) / 2},
                          dense.options());
}

}  // namespace

void RegisterOperators() {
  static std::mutex mutex;
  // Never destroyed: graphs may outlive the end of main.
  static std::vector<std::unique_ptr<torch::Library>>* const libraries =
      new std::vector<std::unique_ptr<torch::Library>>();
  const std::lock_guard<std::mutex> lock(mutex);
  if (c10::Dispatcher::singleton().findSchema({"recsys_ops::linear", ""})) return;
  const auto add = [](torch::Library::Kind kind, c10::optional<c10::DispatchKey> key) {
    return libraries
        ->emplace_back(
            std::make_unique<torch::Library>(kind, "recsys_ops", key, __FILE__, __LINE__))
        .get();
  };
  torch::Library& schemas = *add(torch::Library::DEF, c10::nullopt);
  schemas.def("pack_linear(Tensor weight, Tensor? bias, str dtype) -> Tensor");
  schemas.def("linear(Tensor input, Tensor packed, int out_features, str activation) -> Tensor");
  schemas.def("dot_interaction(Tensor dense, Tensor sparse) -> Tensor");
  schemas.def(
      "mapped_rows(Tensor slots, Tensor masks, Tensor starts, Tensor tables, Tensor ids) -> "
      "Tensor");
  schemas.def(
      "crossed_rows(Tensor lengths, Tensor values, int num_features, int[] sizes, int[] features, "
      "int[] num_rows) -> (Tensor, Tensor)");
  torch::Library& on_cpu = *add(torch::Library::IMPL, c10::DispatchKey::CPU);
  on_cpu.impl("pack_linear", PackLinear);
  on_cpu.impl("linear", LinearOp);
  on_cpu.impl("dot_interaction", DotOp);
  on_cpu.impl("mapped_rows", MappedRows);
  on_cpu.impl("crossed_rows", CrossedRows);
  torch::Library& shapes = *add(torch::Library::IMPL, c10::DispatchKey::Meta);
  shapes.impl("dot_interaction", DotShape);
}

}  // namespace recsys::ops
