#include "wire/tensor_index.h"

#include <map>
#include <string>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::uint32_t kTaken = 0xFFFFFFFF;

bool IsCalled(const InferTensor& tensor, std::string_view name, std::string_view suffix) {
  return tensor.name.size() == name.size() + suffix.size() &&
         tensor.name.substr(0, name.size()) == name && tensor.name.substr(name.size()) == suffix;
}

/// Returns the most frequent name; among equally frequent ones, the first.
std::string_view MostCommon(const std::vector<InferTensor>& tensors) {
  std::map<std::string_view, std::size_t> counts;
  for (const InferTensor& tensor : tensors) ++counts[tensor.name];
  std::string_view most = tensors.front().name;
  for (const InferTensor& tensor : tensors) {
    if (counts[tensor.name] > counts[most]) most = tensor.name;
  }
  return most;
}

// FNV-1a (Fowler, Noll, Vo).
std::uint64_t Hash(std::uint64_t seed, std::string_view text) {
  for (const char c : text) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return seed;
}

}  // namespace

TensorIndex::TensorIndex(const std::vector<InferTensor>& tensors)
    : tensors_(tensors), num_left_(tensors.size()) {
  std::size_t num_slots = 2;
  while (num_slots < 2 * tensors.size()) num_slots *= 2;
  slots_.resize(num_slots);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::size_t slot = FirstSlot(tensors[i].name, {});
    for (; slots_[slot] != 0; slot = (slot + 1) & (num_slots - 1)) {
      if (tensors[slots_[slot] - 1].name != tensors[i].name) continue;
      throw Error(ErrorKind::kRequest, "inputs: got " + Repr(FirstChars(MostCommon(tensors), 64)) +
                                           " more than once, expected each tensor once");
    }
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

const InferTensor* TensorIndex::Take(std::string_view name, std::string_view suffix) {
  for (std::size_t slot = FirstSlot(name, suffix); slots_[slot] != 0;
       slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot] == kTaken) continue;
    const InferTensor& tensor = tensors_[slots_[slot] - 1];
    if (!IsCalled(tensor, name, suffix)) continue;
    slots_[slot] = kTaken;
    --num_left_;
    return &tensor;
  }
  return nullptr;
}

std::size_t TensorIndex::FirstSlot(std::string_view name, std::string_view suffix) const {
  const std::uint64_t hash = Hash(Hash(0xCBF29CE484222325, name), suffix);
  return static_cast<std::size_t>(hash ^ hash >> 32) & (slots_.size() - 1);
}

}  // namespace recsys
