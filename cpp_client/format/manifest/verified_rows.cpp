#include "format/manifest/verified_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "format/json/checked_json.h"

namespace recsys {
namespace {

constexpr std::int64_t kMostRows = 16, kMostIds = 8192;

std::vector<std::int64_t> Whole(const Json& numbers, const std::string& at, std::int64_t count) {
  const bool fits =
      numbers.is_array() && static_cast<std::int64_t>(numbers.size()) == count &&
      std::all_of(numbers.begin(), numbers.end(), [](const Json& number) {
        return number.is_number_integer() &&
               !(number.is_number_unsigned() &&
                 number.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max());
      });
  if (!fits) throw WrongAnswers(at, std::to_string(count) + " whole numbers");
  std::vector<std::int64_t> found;
  found.reserve(numbers.size());
  for (const Json& number : numbers) found.push_back(number.get<std::int64_t>());
  return found;
}

}  // namespace

Error WrongAnswers(const std::string& at, const std::string& expected) {
  return {ErrorKind::kManifest, "manifest.answers." + at + ": expected " + expected};
}

const Json& AnswersField(const Json& answers, const char* key) {
  static const Json nothing;
  const auto found = answers.find(key);
  return found == answers.end() ? nothing : *found;
}

std::vector<float> AnswersFloats(const Json& numbers, const std::string& at, std::int64_t count) {
  std::vector<float> found;
  for (const std::int64_t bits : Whole(numbers, at, count)) {
    if (bits < std::numeric_limits<std::int32_t>::min() ||
        bits > std::numeric_limits<std::int32_t>::max()) {
      throw WrongAnswers(at, "the bits of float32 numbers, as whole numbers");
    }
    const auto narrow = static_cast<std::int32_t>(bits);
    float number = 0;
    std::memcpy(&number, &narrow, sizeof(number));
    found.push_back(number);
  }
  return found;
}

VerifiedRows ReadVerifiedRows(const Json& answers, const Signature& signature) {
  VerifiedRows rows;
  if (!answers.is_object() || answers.empty()) return rows;
  rows.num_rows = JsonCount(answers, "num_rows", "manifest.answers");
  if (rows.num_rows > kMostRows) {
    throw WrongAnswers("num_rows", "1 to " + std::to_string(kMostRows));
  }
  const Json& tolerance = AnswersField(answers, "tolerance");
  if (!tolerance.is_number_float() ||
      !(tolerance.get<double>() >= 0 && tolerance.get<double>() <= 1)) {
    throw WrongAnswers("tolerance", "a number from 0 to 1");
  }
  const Json& dense = AnswersField(answers, "dense");
  if (!dense.is_array() || dense.size() != signature.dense.size()) {
    throw WrongAnswers("dense", std::to_string(signature.dense.size()) + " lists");
  }
  for (std::size_t i = 0; i < dense.size(); ++i) {
    rows.dense.push_back(AnswersFloats(dense[i], "dense[" + std::to_string(i) + "]",
                                       rows.num_rows * signature.dense[i].width));
  }
  const auto num_features = static_cast<std::int64_t>(signature.sparse.size());
  rows.lengths = Whole(AnswersField(answers, "lengths"), "lengths", num_features * rows.num_rows);
  std::int64_t num_ids = 0;
  for (const std::int64_t length : rows.lengths) {
    if (length < 0 || length > kMostIds) {
      throw WrongAnswers("lengths", "0 to " + std::to_string(kMostIds));
    }
    num_ids += length;
  }
  rows.values = Whole(AnswersField(answers, "values"), "values", num_ids);
  if (signature.is_weighted()) {
    rows.weights = AnswersFloats(AnswersField(answers, "weights"), "weights", num_ids);
  }
  return rows;
}

}  // namespace recsys
