#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/wire/messages.h"
#include "wire/torchrec_request.h"

namespace recsys {
namespace {

struct Features {
  int num_features = 0;
  std::string lengths, values, weights;

  std::string Sparse() const {
    return Number(1, static_cast<std::uint64_t>(std::int64_t{num_features})) + Field(2, lengths) +
           Field(3, values) + Field(4, weights);
  }
  std::string Dense() const {
    return Number(1, static_cast<std::uint64_t>(num_features)) + Field(2, values);
  }
};

/// Two rows for SmallSignature: three IDs of each plain input, two of the weighted one.
struct Parts {
  std::int64_t batch_size = 2;
  Features floats{4, "", Floats({1, 2, 3, 4, 5, 6, 7, 8}), ""};
  Features id_list{3, Int32({1, 2, 0, 3, 2, 1}), Int32({0, 1, 2, 3, 4, 5, 6, 7, 8}), ""};
  Features scores{1, Int32({1, 1}), Int32({4, 5}), Floats({0.5F, 2})};
  std::string more;

  std::string Joined() const {
    return Number(1, static_cast<std::uint64_t>(batch_size)) + Field(2, floats.Dense()) +
           Field(3, id_list.Sparse()) + Field(4, scores.Sparse()) + more;
  }
};

class TorchrecRequestTest : public testing::Test {
 protected:
  void Name(const Parts& parts) {
    message_ = parts.Joined();
    TorchrecRequest request;
    ASSERT_TRUE(ReadTorchrecRequest(message_, &request));
    NameTorchrecInputs(request, signature_, {4096, 1 << 18, 1 << 28}, &owned_, &raw_);
  }

  const Signature signature_ = SmallSignature();
  std::string message_;
  OwnedBytes owned_;
  RawRequest raw_;
};

TEST_F(TorchrecRequestTest, PartsGetTheNamesOfTheSignatureInItsOrder) {
  Name({});
  EXPECT_EQ(raw_.num_rows, 2);
  ASSERT_EQ(raw_.dense.size(), 2U);
  EXPECT_EQ(raw_.dense[0].name, "context");
  EXPECT_EQ(raw_.dense[0].values, Floats({1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(raw_.dense[1].values, Floats({4, 8}));
  ASSERT_EQ(raw_.sparse.size(), 4U);
  EXPECT_EQ(raw_.sparse[1].name, "genres");
  EXPECT_EQ(raw_.sparse[1].lengths, Int32({0, 3}));
  EXPECT_EQ(raw_.sparse[1].values, Int64({3, 4, 5}));
  EXPECT_EQ(raw_.sparse[3].name, "tags");
  EXPECT_EQ(raw_.sparse[3].values, Int64({4, 5}));
  EXPECT_EQ(raw_.sparse[3].weights, Floats({0.5F, 2}));
  EXPECT_TRUE(raw_.sparse[0].weights.empty());
}

TEST_F(TorchrecRequestTest, LengthsAndIdsMayBeInt64) {
  Parts parts;
  parts.id_list.lengths = Int64({1, 2, 0, 3, 2, 1});
  parts.id_list.values = Int64({-1, 1LL << 40, 2, 3, 4, 5, 6, 7, 8});
  Name(parts);
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({1, 2}));
  EXPECT_EQ(raw_.sparse[0].values, Int64({-1, 1LL << 40, 2}));
  EXPECT_EQ(raw_.sparse[2].values, Int64({6, 7, 8}));
}

TEST_F(TorchrecRequestTest, NegativeInt32IdsStayNegative) {
  Parts parts;
  parts.scores.values = Int32({-4, -5});
  Name(parts);
  EXPECT_EQ(raw_.sparse[3].values, Int64({-4, -5}));
}

TEST_F(TorchrecRequestTest, ABatchOfNoRowsIsTaken) {
  Parts parts;
  parts.batch_size = 0;
  parts.floats.values = parts.id_list.lengths = parts.id_list.values = "";
  parts.scores.lengths = parts.scores.values = parts.scores.weights = "";
  Name(parts);
  EXPECT_EQ(raw_.sparse.size(), 4U);
  EXPECT_TRUE(raw_.dense[0].values.empty());
}

TEST_F(TorchrecRequestTest, AMessageMayComeInPieces) {
  Parts parts;
  const std::string last = parts.id_list.values;
  parts.id_list.values = "old";
  parts.more = Field(3, Field(3, last)) + Field(2, Number(1, 4));
  Name(parts);
  EXPECT_EQ(raw_.sparse[0].values, Int64({0, 1, 2}));
}

TEST_F(TorchrecRequestTest, BytesThatAreNoMessageAreRefused) {
  TorchrecRequest request;
  EXPECT_FALSE(ReadTorchrecRequest("\xff", &request));
  EXPECT_FALSE(ReadTorchrecRequest(Field(3, "\xff"), &request));
  EXPECT_TRUE(ReadTorchrecRequest("", &request));
}

TEST(TorchrecIntegersTest, AreRefused) {
  Signature signature = SmallSignature();
  signature.outputs[1] = {"ids", {3}, OutputType::kInt64};
  const std::string message = Parts().Joined();
  TorchrecRequest request;
  ASSERT_TRUE(ReadTorchrecRequest(message, &request));
  OwnedBytes owned;
  RawRequest raw;
  EXPECT_EQ(
      ErrorOf([&] {
        NameTorchrecInputs(request, signature, {4096, 1 << 18, 1 << 28}, &owned, &raw);
      }),
      "outputs: got 'ids' of int64, expected float32 alone: this protocol has no other numbers; "
      "call recsys.v1.PredictionService or inference.GRPCInferenceService");
}

struct Wrong {
  const char* name;
  std::function<void(Parts*)> spoil;
  const char* text;
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

class WrongTorchrecRequestTest : public TorchrecRequestTest,
                                 public testing::WithParamInterface<Wrong> {};

TEST_P(WrongTorchrecRequestTest, IsRefusedByFieldGotAndExpected) {
  Parts parts;
  GetParam().spoil(&parts);
  EXPECT_EQ(ErrorOf([&] { Name(parts); }), GetParam().text);
}

std::vector<Wrong> AllWrong() {
  return {
      Wrong{"negative_batch", [](Parts* p) { p->batch_size = -1; },
            "batch_size: got -1, expected 0 or more"},
      Wrong{"endless_batch", [](Parts* p) { p->batch_size = 2147483647; },
            "num_rows: got 2147483647, expected at most 4096 in one request; split it"},
      Wrong{"other_batch", [](Parts* p) { p->batch_size = 3; },
            "float_features.values: got 32 bytes, expected 48 (float32 [3, 4])"},
      Wrong{"fewer_floats", [](Parts* p) { p->floats.num_features = 3; },
            "float_features.num_features: got 3, expected 4 (in this order: 'context [3]', "
            "'price [1]')"},
      Wrong{"more_features", [](Parts* p) { p->id_list.num_features = 4; },
            "id_list_features.num_features: got 4, expected 3 (in this order: 'user', 'genres', "
            "'item')"},
      Wrong{"no_lengths", [](Parts* p) { p->id_list.lengths = ""; },
            "id_list_features.lengths: got 0 bytes, expected 24 (int32 [3, 2]) or 48 (int64 [3, "
            "2])"},
      Wrong{"negative_length",
            [](Parts* p) {
              p->id_list.lengths = Int32({1, 2, 1, -1, 0, 3});
            },
            "id_list_features.lengths: got -1 for 'genres' in row 1, expected 0 to 2147483647"},
      Wrong{"huge_length",
            [](Parts* p) {
              p->id_list.lengths = Int64({1, 2, 1, 2, 0, 1LL << 62});
            },
            "id_list_features.lengths: got 4611686018427387904 for 'item' in row 1, expected 0 "
            "to 2147483647"},
      Wrong{"fewer_ids", [](Parts* p) { p->id_list.values.pop_back(); },
            "id_list_features.values: got 35 bytes, expected 36 (int32 [9]) or 72 (int64 [9])"},
      Wrong{"weights_of_plain_features", [](Parts* p) { p->id_list.weights = Floats({1}); },
            "id_list_features.weights: got 4 bytes, expected none"},
      Wrong{"no_weights", [](Parts* p) { p->scores.weights = ""; },
            "id_score_list_features.weights: got 0 bytes, expected 8 (float32, one for each of 2 "
            "IDs)"},
      Wrong{"embeddings", [](Parts* p) { p->more = Field(5, Number(1, 1)); },
            "embedding_features: got 1 features, expected none: no model here takes such"},
      Wrong{"unary_values", [](Parts* p) { p->more = Field(6, Field(3, "abcd")); },
            "unary_features: got 0 features, expected none: no model here takes such"}};
}

INSTANTIATE_TEST_SUITE_P(All, WrongTorchrecRequestTest, testing::ValuesIn(AllWrong()));

}  // namespace
}  // namespace recsys
