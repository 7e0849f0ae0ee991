// Fuzzes the content of requests: those that pass the checks must be safe for the batch writer, and
// their counts must add up.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "recsys/batch_writer.h"
#include "recsys/error.h"
#include "recsys/request.h"

namespace {

using recsys::CheckedRequest;
using recsys::RawRequest;

/// Takes values from the fuzzer's bytes; zeros once they are used up.
class Source {
 public:
  Source(const std::uint8_t* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

  std::uint8_t Byte() { return at_ < size_ ? bytes_[at_++] : std::uint8_t{0}; }
  bool Flag() { return (Byte() & 1) != 0; }
  std::string_view View(std::size_t num_bytes) {
    const std::size_t start = at_ < size_ ? at_ : size_;
    const std::size_t num = num_bytes < size_ - start ? num_bytes : size_ - start;
    at_ = start + num;
    return {reinterpret_cast<const char*>(bytes_) + start, num};
  }

 private:
  const std::uint8_t* bytes_;
  std::size_t size_;
  std::size_t at_ = 0;
};

/// Small IDs and lengths, so that many of them are valid; occasionally an invalid byte.
std::string Numbers(Source* source, std::size_t num, std::size_t num_bytes) {
  std::string bytes;
  for (std::size_t i = 0; i < num; ++i) {
    bytes += static_cast<char>(source->Byte());
    bytes.append(num_bytes - 1, '\0');
  }
  if (source->Byte() == 255) bytes += "x";
  if (source->Byte() == 254 && !bytes.empty()) bytes.back() = '\xff';
  return bytes;
}

recsys::Signature MakeSignature(Source* source) {
  recsys::Signature signature;
  const bool has_context = source->Flag();
  signature.dense = {{"a", 2}, {"b", 1}};
  signature.sparse = {{"c", {{"t", 200, recsys::IdPolicy::kReject}}, "sum", source->Flag()},
                      {"d", {{"u", 9, recsys::IdPolicy::kHash}}, "mean", source->Flag(), "xxh64"},
                      {"e", {{"t", 100, recsys::IdPolicy::kReject}}, "none", false}};
  signature.outputs = {{"score", {}}};
  if (has_context) signature.context = {"a", "c"};
  return signature;
}

/// A nearly valid request, and the memory that its views point into.
struct Made {
  RawRequest raw;
  std::vector<std::string> kept;
  std::vector<std::vector<std::string_view>> texts;
};

/// Short texts, most of them digits.
recsys::RawTexts Texts(Source* source, std::size_t num, Made* made) {
  made->texts.emplace_back();
  for (std::size_t i = 0; i < num; ++i) {
    const std::uint8_t kind = source->Byte();
    static constexpr std::string_view kDigits = "-0129";
    made->texts.back().push_back(kind < 200 ? kDigits.substr(kind % 5, 1 + kind / 5 % 3)
                                            : source->View(kind % 40));
  }
  return recsys::RawTexts::Of(made->texts.back());
}

void AddSparse(Source* source, std::string_view name, Made* made) {
  const std::uint8_t kind = source->Byte();
  const bool once = (kind & 1) != 0;
  const std::size_t num_bags = once ? 1 : static_cast<std::size_t>(made->raw.num_rows);
  std::string lengths = Numbers(source, num_bags, 4);
  std::size_t num_ids = 0;
  for (std::size_t i = 0; i < lengths.size(); i += 4)
    num_ids += static_cast<std::uint8_t>(lengths[i]);
  if ((kind & 2) != 0) ++num_ids;
  made->kept.push_back(std::move(lengths));
  made->kept.push_back(Numbers(source, num_ids, 8));
  made->kept.push_back((kind & 4) != 0 ? Numbers(source, num_ids, 4) : std::string());
  const std::size_t last = made->kept.size() - 1;
  auto& to = once ? made->raw.context_sparse : made->raw.sparse;
  to.push_back({name, made->kept[last - 2], made->kept[last - 1], made->kept[last]});
  if ((kind & 8) != 0) to.back().texts = Texts(source, num_ids, made);
  if ((kind & 24) == 8) to.back().values = {};
}

void AddDense(Source* source, std::string_view name, std::size_t width, Made* made) {
  const bool once = source->Flag();
  const std::size_t num_rows = once ? 1 : static_cast<std::size_t>(made->raw.num_rows);
  made->kept.push_back(Numbers(source, width * num_rows, 4));
  (once ? made->raw.context_dense : made->raw.dense).push_back({name, made->kept.back()});
}

void Make(Source* source, Made* made) {
  // Views point into these strings: they must not move.
  made->kept.reserve(64);
  made->texts.reserve(64);
  made->raw.num_rows = source->Byte() % 5;
  const std::string_view names[] = {"a", "b", "c", "d", "e", source->View(source->Byte() % 4)};
  const std::uint8_t order = source->Byte();
  for (std::size_t i = 0; i < 2; ++i)
    AddDense(source, names[(i + order) % 2], i == 0 ? 2 : 1, made);
  for (std::size_t i = 0; i < 3; ++i) AddSparse(source, names[2 + (i + order / 2) % 3], made);
  if (order > 250) AddSparse(source, names[source->Byte() % 6], made);
  if (order == 250) made->raw.num_rows = -1;
}

void Expect(bool holds) {
  if (!holds) __builtin_trap();
}

std::int64_t SumOf(const recsys::Span<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) {
    Expect(length >= 0);
    sum += length;
  }
  return sum;
}

void ExpectSound(const recsys::Batch& batch, std::size_t num_inputs, std::int64_t num_ids) {
  const auto num_rows = static_cast<std::size_t>(batch.num_rows);
  const std::size_t num_context =
      batch.num_contexts > 0
          ? batch.context.lengths.size() / static_cast<std::size_t>(batch.num_contexts)
          : 0;
  Expect(batch.sparse.lengths.size() == num_rows * (num_inputs - num_context));
  Expect(SumOf(batch.sparse.lengths) == static_cast<std::int64_t>(batch.sparse.values.size()));
  Expect(SumOf(batch.context.lengths) == static_cast<std::int64_t>(batch.context.values.size()));
  Expect(batch.sparse.values.size() + batch.context.values.size() ==
         static_cast<std::size_t>(num_ids));
  Expect(batch.row_context.size() == (batch.is_ranking ? num_rows : 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  Source source(bytes, size);
  const recsys::RequestChecker checker(MakeSignature(&source), {4, 4000, 1 << 16}, source.Flag());
  Made made[3];
  std::vector<CheckedRequest> checked(3);
  std::vector<const CheckedRequest*> plain, ranking;
  for (std::size_t i = 0; i < 3; ++i) {
    Make(&source, &made[i]);
    try {
      checker.Check(made[i].raw, &checked[i]);
    } catch (const recsys::Error& error) {
      Expect(error.kind() == recsys::ErrorKind::kRequest ||
             error.kind() == recsys::ErrorKind::kRequestTooLarge);
      continue;
    }
    (checked[i].has_context ? ranking : plain).push_back(&checked[i]);
  }
  recsys::BatchWriter writer(checker.signature());
  for (const auto& requests : {plain, ranking}) {
    if (requests.empty()) continue;
    std::int64_t num_ids = 0;
    for (const CheckedRequest* request : requests) num_ids += request->num_ids;
    ExpectSound(writer.Write({requests.data(), requests.size()}), 3, num_ids);
  }
  return 0;
}
