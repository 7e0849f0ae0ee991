#ifndef RECSYS_TESTS_OPS_LAYER_H_
#define RECSYS_TESTS_OPS_LAYER_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/packed.h"

namespace recsys::ops {

using Floats = std::vector<float>;

inline Floats Random(std::size_t count, std::mt19937* random, float low = -1) {
  std::uniform_real_distribution<float> draw(low, 1);
  Floats values(count);
  for (float& value : values) value = draw(*random);
  return values;
}

/// Packed weights in memory that is aligned.
struct Layer {
  Layer(const Floats& weight, const Floats* bias, std::int64_t num_outputs, std::int64_t num_inputs,
        WeightType type) {
    const std::vector<char> data = Pack(weight.data(), bias == nullptr ? nullptr : bias->data(),
                                        num_outputs, num_inputs, type);
    size = static_cast<std::int64_t>(data.size());
    bytes.reset(static_cast<char*>(std::aligned_alloc(64, (data.size() + 63) / 64 * 64)));
    std::memcpy(bytes.get(), data.data(), data.size());
    error = ReadPacked(bytes.get(), size, &packed);
  }
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> bytes;
  std::int64_t size = 0;
  Packed packed;
  std::string error;
};

}  // namespace recsys::ops

#endif  // RECSYS_TESTS_OPS_LAYER_H_
