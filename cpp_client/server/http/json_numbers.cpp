#include "server/http/json_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>

#include "recsys/error.h"

namespace recsys {
namespace {

const char* NameOf(NumberType type) {
  static constexpr const char* kNames[] = {"float32", "int64", "int32"};
  return kNames[static_cast<std::size_t>(type)];
}

[[noreturn]] void ThrowBeyond(const std::string& field, NumberType type) {
  throw Error(ErrorKind::kRequest, field + ": got a number beyond the range of " + NameOf(type));
}

void CheckKinds(const std::string& field, const JsonEntries& entries, NumberType type) {
  const bool is_float = type == NumberType::kFloat32;
  std::set<std::string> others;
  for (const JsonValue* const entry : entries) {
    const bool is_right = entry->is_whole() || (is_float && entry->As<double>() != nullptr);
    if (!is_right) others.insert(entry->kind());
  }
  if (others.empty()) return;
  std::string got;
  for (const std::string& kind : others) got += (got.empty() ? "" : " and ") + kind;
  throw Error(ErrorKind::kRequest, field + ": got " + got + ", expected " +
                                       (is_float ? "numbers" : "whole numbers") + " alone");
}

double DoubleOf(const std::string& field, const JsonValue& entry) {
  if (const auto* const number = entry.As<double>()) return *number;
  if (const auto* const whole = entry.As<std::int64_t>()) return static_cast<double>(*whole);
  const double value = std::strtod(entry.As<JsonValue::Big>()->digits.c_str(), nullptr);
  if (std::isinf(value)) ThrowBeyond(field, NumberType::kFloat32);
  return value;
}

/// What is beyond its range becomes infinite, which a plain cast need not do.
float FloatOf(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  // From half a step above the largest on it is rounded up.
  constexpr double kEnd = 0x1.ffffffp127;
  if (std::isnan(value)) return std::numeric_limits<float>::quiet_NaN();
  if (std::abs(value) >= kEnd) {
    return std::copysign(std::numeric_limits<float>::infinity(),
                         static_cast<float>(std::copysign(1.0, value)));
  }
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

template <typename T>
T WholeOf(const std::string& field, const JsonValue& entry, NumberType type) {
  const auto* const whole = entry.As<std::int64_t>();
  const bool fits = whole != nullptr && *whole >= std::numeric_limits<T>::min() &&
                    *whole <= std::numeric_limits<T>::max();
  if (!fits) ThrowBeyond(field, type);
  return static_cast<T>(*whole);
}

template <typename T, typename Read>
std::string_view Packed(const JsonEntries& entries, OwnedBytes* owned, Read read) {
  char* const data = owned->Add(entries.size() * sizeof(T));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const T value = read(*entries[i]);
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
  return {data, entries.size() * sizeof(T)};
}

}  // namespace

FlatList Flat(const std::string& field, const JsonValue::List& list) {
  FlatList flat;
  flat.shape.push_back(static_cast<std::int64_t>(list.size()));
  for (const JsonValue& entry : list) flat.entries.push_back(&entry);
  while (!flat.entries.empty() && flat.entries[0]->As<JsonValue::List>() != nullptr) {
    const std::size_t size = flat.entries[0]->As<JsonValue::List>()->size();
    JsonEntries inner;
    for (const JsonValue* const entry : flat.entries) {
      const auto* const one = entry->As<JsonValue::List>();
      if (one == nullptr || one->size() != size) {
        throw Error(ErrorKind::kRequest,
                    field + ": got lists of unequal lengths, expected rows of equal ones");
      }
      for (const JsonValue& value : *one) inner.push_back(&value);
    }
    flat.shape.push_back(static_cast<std::int64_t>(size));
    flat.entries = std::move(inner);
  }
  return flat;
}

std::string_view Pack(const std::string& field, const JsonEntries& entries, NumberType type,
                      OwnedBytes* owned) {
  CheckKinds(field, entries, type);
  switch (type) {
    case NumberType::kFloat32:
      return Packed<float>(entries, owned,
                           [&](const JsonValue& entry) { return FloatOf(DoubleOf(field, entry)); });
    case NumberType::kInt64:
      return Packed<std::int64_t>(entries, owned, [&](const JsonValue& entry) {
        return WholeOf<std::int64_t>(field, entry, type);
      });
    case NumberType::kInt32:
      return Packed<std::int32_t>(entries, owned, [&](const JsonValue& entry) {
        return WholeOf<std::int32_t>(field, entry, type);
      });
  }
  return {};
}

std::string ListText(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (std::size_t i = 0; i < std::min<std::size_t>(numbers.size(), 8); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  }
  return text + "]";
}

}  // namespace recsys
