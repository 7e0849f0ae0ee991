#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "recsys/batch_writer.h"
#include "tests/request/table.h"

namespace {

std::atomic<std::int64_t> num_allocations{0};

}  // namespace

void* operator new(std::size_t size) {
  ++num_allocations;
  void* found = std::malloc(size);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

namespace recsys {
namespace {

class Allocations : public testing::TestWithParam<const char*> {};

TEST_P(Allocations, AreNoneOnceMemoryIsThere) {
  const Json& item = Table::Get().Case(GetParam());
  const TableRequest request(item["request"]);
  const RequestChecker checker = Table::Get().CheckerOf(item);
  BatchWriter writer(checker.signature());
  CheckedRequest checked;
  const CheckedRequest* const one = &checked;
  checker.Check(request.raw(), &checked);
  writer.Write({&one, 1});
  const std::int64_t before = num_allocations;
  checker.Check(request.raw(), &checked);
  EXPECT_EQ(num_allocations - before, 0) << "of the checks";
  writer.Write({&one, 1});
  EXPECT_EQ(num_allocations - before, 0) << "of the batch's writer";
}

INSTANTIATE_TEST_SUITE_P(Requests, Allocations,
                         testing::Values("good", "good-in-another-order", "context-ranking",
                                         "context-plain"));

}  // namespace
}  // namespace recsys
