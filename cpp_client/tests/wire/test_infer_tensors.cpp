#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/wire/messages.h"
#include "wire/infer/infer_request.h"

namespace recsys {
namespace {

/// A tensor that owns what it says.
struct Made {
  std::string name, datatype;
  std::vector<std::int64_t> sizes;
  std::string data;
};

/// Two rows for SmallSignature; three IDs of 'user'.
std::vector<Made> Good() {
  return {{"context", "FP32", {2, 3}, Floats({1, 2, 3, 4, 5, 6})},
          {"price", "FP32", {2, 1}, Floats({7, 8})},
          {"user.values", "INT64", {3}, Int64({1, 2, 3})},
          {"user.lengths", "INT32", {2}, Int32({2, 1})},
          {"genres.values", "INT64", {1}, Int64({-9})},
          {"genres.lengths", "INT32", {2}, Int32({0, 1})},
          {"item.values", "INT64", {0}, ""},
          {"item.lengths", "INT32", {2}, Int32({0, 0})},
          {"tags.values", "INT64", {2}, Int64({4, 5})},
          {"tags.lengths", "INT32", {2}, Int32({1, 1})},
          {"tags.weights", "FP32", {2}, Floats({0.5F, 2})}};
}

class InferTensorsTest : public testing::Test {
 protected:
  void Read(const std::vector<Made>& made, std::string_view context = "") {
    made_ = made;
    std::vector<InferTensor> tensors;
    for (const Made& one : made_) {
      tensors.push_back({one.name, one.datatype, one.data, {}});
      for (const std::int64_t size : one.sizes) tensors.back().shape.Add(size);
    }
    ReadInferTensors(tensors, context, signature_, {4096, 1 << 18, 1 << 28}, &owned_, &raw_);
  }
  std::string Refusal(const std::vector<Made>& made, std::string_view context = "") {
    return ErrorOf([&] { Read(made, context); });
  }

  const Signature signature_ = SmallSignature();
  std::vector<Made> made_;
  OwnedBytes owned_;
  RawRequest raw_;
};

TEST_F(InferTensorsTest, TensorsBecomeInputsInPlaceInAnyOrder) {
  std::vector<Made> made = Good();
  for (int turn = 0; turn < 2; ++turn) {
    Read(made);
    EXPECT_EQ(raw_.num_rows, 2);
    ASSERT_EQ(raw_.dense.size(), 2U);
    EXPECT_EQ(raw_.dense[1].values, Floats({7, 8}));
    ASSERT_EQ(raw_.sparse.size(), 4U);
    EXPECT_EQ(raw_.sparse[0].name, "user");
    EXPECT_EQ(raw_.sparse[0].lengths, Int32({2, 1}));
    EXPECT_EQ(raw_.sparse[1].values, Int64({-9}));
    EXPECT_EQ(raw_.sparse[3].weights, Floats({0.5F, 2}));
    std::reverse(made.begin(), made.end());
  }
}

TEST_F(InferTensorsTest, OtherWholeNumbersAreConverted) {
  std::vector<Made> made = Good();
  made[2] = {"user.values", "INT32", {3}, Int32({1, -2, 3})};
  made[3] = {"user.lengths", "INT64", {2}, Int64({2, 1})};
  Read(made);
  EXPECT_EQ(raw_.sparse[0].values, Int64({1, -2, 3}));
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({2, 1}));
}

TEST_F(InferTensorsTest, IdsOfOneLengthMayComeAsOneTensor) {
  std::vector<Made> made = Good();
  made.erase(made.begin() + 2, made.begin() + 4);
  made.push_back({"user", "INT32", {2, 2}, Int32({1, 2, 3, 4})});
  Read(made);
  EXPECT_EQ(raw_.sparse[0].name, "user");
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({2, 2}));
  EXPECT_EQ(raw_.sparse[0].values, Int64({1, 2, 3, 4}));
  made.back() = {"user", "INT64", {2}, Int64({1, 2})};
  Read(made);
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({1, 1}));
  made.back() = {"user", "INT64", {2, 0}, ""};
  Read(made);
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({0, 0}));
}

TEST_F(InferTensorsTest, TextsStayWhereTheyLie) {
  const std::vector<std::string> texts{"ab", "", "\xff\xfe"};
  std::vector<Made> made = Good();
  made[2] = {"user.values", "BYTES", {3}, Prefixed(texts)};
  Read(made);
  EXPECT_EQ(TextsOf(raw_.sparse[0]), texts);
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({2, 1}));
  EXPECT_TRUE(raw_.sparse[0].values.empty());
  made.erase(made.begin() + 2, made.begin() + 4);
  made.push_back({"user", "BYTES", {2, 1}, Prefixed({"a", "b"})});
  Read(made);
  EXPECT_EQ(TextsOf(raw_.sparse[0]), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({1, 1}));
  made.back() = {"user", "BYTES", {2, 0}, ""};
  Read(made);
  EXPECT_EQ(raw_.sparse[0].texts.num_texts, 0);
  EXPECT_EQ(raw_.sparse[0].lengths, Int32({0, 0}));
}

TEST_F(InferTensorsTest, OneFloatARowMayComeFlat) {
  std::vector<Made> made = Good();
  made[1].sizes = {2};
  Read(made);
  EXPECT_EQ(raw_.dense[1].values, Floats({7, 8}));
}

TEST_F(InferTensorsTest, InputsOfTheContextAreApartAndHaveOneRow) {
  std::vector<Made> made = Good();
  made[0] = {"context", "FP32", {1, 3}, Floats({1, 2, 3})};
  made[3] = {"user.lengths", "INT32", {1}, Int32({3})};
  for (const char* context : {"user,context", " context ,, user,\tuser "}) {
    Read(made, context);
    EXPECT_EQ(raw_.num_rows, 2);
    ASSERT_EQ(raw_.context_dense.size(), 1U);
    EXPECT_EQ(raw_.context_dense[0].name, "context");
    ASSERT_EQ(raw_.context_sparse.size(), 1U);
    EXPECT_EQ(raw_.context_sparse[0].name, "user");
    EXPECT_EQ(raw_.dense.at(0).name, "price");
    EXPECT_EQ(raw_.sparse.at(0).name, "genres");
    EXPECT_EQ(raw_.sparse.size(), 3U);
  }
}

TEST_F(InferTensorsTest, AContextThatCannotBeIsRefused) {
  EXPECT_EQ(Refusal(Good(), "zoo,who,user"),
            "parameters['context']: got an unknown input 'who', expected 'context', 'price', "
            "'user', 'genres', 'item', 'tags'");
  EXPECT_EQ(Refusal(Good(), "user"),
            "inputs['user']: got 2 rows, expected 1: it is of the context");
  EXPECT_EQ(Refusal(Good(), "context,price,user,genres,item,tags"),
            "parameters['context']: got every input, expected at least one with all the rows");
}

struct Wrong {
  const char* name;
  std::function<void(std::vector<Made>*)> spoil;
  const char* text;
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

class WrongTensorsTest : public InferTensorsTest, public testing::WithParamInterface<Wrong> {};

TEST_P(WrongTensorsTest, AreRefusedByFieldGotAndExpected) {
  std::vector<Made> made = Good();
  GetParam().spoil(&made);
  EXPECT_EQ(Refusal(made), GetParam().text);
}

using Tensors = std::vector<Made>;

std::vector<Wrong> AllWrong() {
  return {
      Wrong{"unknown", [](Tensors* t) { (*t)[2].name = "who.values"; },
            "inputs: got an unknown tensor 'who.values', expected 'context', 'price', "
            "'user.values', 'user.lengths', 'genres.values', 'genres.lengths', 'item.values', "
            "'item.lengths' and 3 more"},
      Wrong{"missing", [](Tensors* t) { t->erase(t->begin()); },
            "inputs: missing 'context', expected each of the model's inputs once"},
      Wrong{"no_weights", [](Tensors* t) { t->pop_back(); },
            "inputs: missing 'tags.weights', expected each of the model's inputs once"},
      Wrong{"no_lengths", [](Tensors* t) { t->erase(t->begin() + 3); },
            "inputs: missing 'user.lengths', expected each of the model's inputs once"},
      Wrong{"twice", [](Tensors* t) { (*t)[1].name = "context"; },
            "inputs: got 'context' more than once, expected each tensor once"},
      Wrong{"whole_and_parts",
            [](Tensors* t) {
              t->push_back({"user", "INT64", {2, 0}, ""});
            },
            "inputs: got 'user' whole and in parts, expected one of the two"},
      Wrong{"float_ids", [](Tensors* t) { (*t)[2].datatype = "FP32"; },
            "inputs['user.values'].datatype: got 'FP32', expected INT64 or INT32 or BYTES"},
      Wrong{"text_lengths", [](Tensors* t) { (*t)[3].datatype = "BYTES"; },
            "inputs['user.lengths'].datatype: got 'BYTES', expected INT64 or INT32"},
      Wrong{"text_floats", [](Tensors* t) { (*t)[1].datatype = "BYTES"; },
            "inputs['price'].datatype: got 'BYTES', expected FP32"},
      Wrong{"fewer_texts",
            [](Tensors* t) {
              (*t)[2] = {"user.values", "BYTES", {3}, Prefixed({"1", ""})};
            },
            "inputs['user.values']: got 2 texts, expected 3 (BYTES [3])"},
      Wrong{"more_texts",
            [](Tensors* t) {
              (*t)[2] = {"user.values", "BYTES", {1}, Prefixed({"1", ""})};
            },
            "inputs['user.values']: got more than 1 texts, expected 1 (BYTES [1])"},
      Wrong{"negative_texts",
            [](Tensors* t) {
              (*t)[2] = {"user.values", "BYTES", {-1}, ""};
            },
            "inputs['user.values'].shape: got [-1], expected sizes of 0 or more"},
      Wrong{"endless_texts",
            [](Tensors* t) {
              t->erase(t->begin() + 2, t->begin() + 4);
              t->push_back({"user", "BYTES", {INT64_MAX, INT64_MAX}, ""});
            },
            "sparse: got 85070591730234615847396907784232501249 IDs, expected at most 262144 in "
            "one request; split it"},
      Wrong{"cut_length",
            [](Tensors* t) {
              (*t)[2] = {"user.values", "BYTES", {1}, Prefixed({"1"}) + "abc"};
            },
            "inputs['user.values']: got 8 bytes that end within a text, expected each text after "
            "its length (4 bytes, little-endian)"},
      Wrong{"cut_text",
            [](Tensors* t) {
              (*t)[2] = {"user.values", "BYTES", {1}, "\xff\xff\xff\xff"};
            },
            "inputs['user.values']: got 4 bytes that end within a text, expected each text after "
            "its length (4 bytes, little-endian)"},
      Wrong{"texts_of_too_many_rows",
            [](Tensors* t) {
              t->erase(t->begin() + 2, t->begin() + 4);
              t->push_back({"user", "BYTES", {5000, 0}, ""});
            },
            "num_rows: got 5000, expected at most 4096 in one request; split it"},
      Wrong{"fp64", [](Tensors* t) { (*t)[0].datatype = "FP64"; },
            "inputs['context'].datatype: got 'FP64', expected FP32"},
      Wrong{"other_width",
            [](Tensors* t) {
              (*t)[0].sizes = {3, 2};
            },
            "inputs['context'].shape: got [3, 2], expected [-1, 3]"},
      Wrong{"flat", [](Tensors* t) { (*t)[0].sizes = {6}; },
            "inputs['context'].shape: got [6], expected [-1, 3]"},
      Wrong{"negative",
            [](Tensors* t) {
              (*t)[0].sizes = {-2, 3};
            },
            "inputs['context'].shape: got [-2, 3], expected sizes of 0 or more"},
      Wrong{"endless",
            [](Tensors* t) {
              (*t)[0].sizes = {std::int64_t{1} << 62, 3};
            },
            "inputs['context']: got 24 bytes, expected 55340232221128654848 (FP32 "
            "[4611686018427387904, 3])"},
      Wrong{"no_shape", [](Tensors* t) { (*t)[2].sizes = {}; },
            "inputs['user.values'].shape: got [], expected [-1]"},
      Wrong{"long_shape", [](Tensors* t) { (*t)[2].sizes.assign(20, 1); },
            "inputs['user.values'].shape: got [1, 1, 1, 1, 1, 1, 1, 1], expected [-1]"},
      Wrong{"deep_lengths",
            [](Tensors* t) {
              (*t)[3].sizes = {2, 1};
            },
            "inputs['user.lengths'].shape: got [2, 1], expected [-1]"},
      Wrong{"more_rows",
            [](Tensors* t) {
              (*t)[1].sizes = {3, 1};
            },
            "inputs['price']: got 8 bytes, expected 12 (FP32 [3, 1])"},
      Wrong{"other_rows",
            [](Tensors* t) {
              (*t)[1] = {"price", "FP32", {1, 1}, Floats({7})};
            },
            "inputs['price']: got 1 rows, expected 2, as many as 'context' has"},
      Wrong{"long_lengths",
            [](Tensors* t) {
              (*t)[3] = {"user.lengths", "INT64", {2}, Int64({1, 1LL << 31})};
            },
            "inputs['user.lengths']: got 2147483648 in row 1, expected 0 to 2147483647"},
      Wrong{"weights_of_another_shape",
            [](Tensors* t) {
              t->back().sizes = {2, 1};
            },
            "inputs['tags.weights'].shape: got [2, 1], expected [2], that of the IDs"},
      Wrong{"rows_without_ids",
            [](Tensors* t) {
              t->erase(t->begin() + 2, t->begin() + 4);
              t->push_back({"user", "INT64", {std::int64_t{1} << 62, 0}, ""});
            },
            "num_rows: got 4611686018427387904, expected at most 4096 in one request; split it"},
      Wrong{"more_bytes_than_any_number_here_holds",
            [](Tensors* t) {
              t->erase(t->begin() + 2, t->begin() + 4);
              t->push_back({"user", "INT64", {INT64_MAX, INT64_MAX}, ""});
            },
            "inputs['user']: got 0 bytes, expected 680564733841876926779175262273860009992 "
            "(INT64 [9223372036854775807, 9223372036854775807])"}};
}

INSTANTIATE_TEST_SUITE_P(All, WrongTensorsTest, testing::ValuesIn(AllWrong()));

class ReadInputsTest : public testing::Test {
 protected:
  /// The tensors as a message.
  static std::string Bytes(const std::vector<Made>& made, bool is_raw = true,
                           const std::string& more = "") {
    std::string inputs, contents;
    for (const Made& one : made) {
      Writer shape;
      for (const std::int64_t size : one.sizes) shape.Varint(static_cast<std::uint64_t>(size));
      inputs += Field(5, Field(1, one.name) + Field(2, one.datatype) +
                             Field(3, shape.Finish().Joined()) + more);
      if (is_raw) contents += Field(7, one.data);
    }
    return inputs + contents;
  }
  std::string Refusal(const std::string& bytes) {
    return ErrorOf([&] {
      InferMessage message;
      ASSERT_TRUE(ReadInferMessage(bytes, kMaxTensorsKept, &message));
      ReadInputs(message, "", SmallSignature(), {4096, 1 << 18, 1 << 28}, &owned_, &raw_);
    });
  }

  OwnedBytes owned_;
  RawRequest raw_;
};

TEST_F(ReadInputsTest, RawContentsBelongToTheirInputs) {
  EXPECT_EQ(Refusal(Bytes(Good())), "no error");
  EXPECT_EQ(raw_.sparse.size(), 4U);
  EXPECT_EQ(Refusal(Bytes(Good()) + Field(7, "")),
            "raw_input_contents: got 12 tensors, expected 11, as many as inputs");
  EXPECT_EQ(Refusal(Bytes(Good(), false)),
            "inputs['context']: got 0 bytes, expected 24 (FP32 [2, 3])");
  EXPECT_EQ(Refusal(Bytes(Good(), true, Field(5, ""))),
            "inputs['context'].contents: got values beside raw_input_contents, expected one of the "
            "two");
  EXPECT_EQ(Refusal(Bytes(Good(), true, Field(4, Field(1, "shared_memory_region")))),
            "inputs['context'].parameters['shared_memory_region']: got shared_memory_region, "
            "expected none: this server has no such");
}

TEST_F(ReadInputsTest, TypedTextsAreOneListWhateverPiecesTheyComeIn) {
  const std::string head =
      Field(1, "user.values") + Field(2, "BYTES") + Field(3, std::string("\x03"));
  const auto typed = [&](const std::string& contents) {
    std::string inputs;
    for (const Made& one : Good()) {
      if (one.name == "user.values") continue;
      const std::uint32_t field = one.datatype == "FP32" ? 6 : one.datatype == "INT64" ? 3 : 2;
      Writer numbers, shape;
      for (std::size_t i = 0; field == 2 && i < one.data.size(); i += 4)
        numbers.Varint(one.data[i]);
      for (std::size_t i = 0; field == 3 && i < one.data.size(); i += 8)
        numbers.Varint(one.data[i] & 7);
      for (const std::int64_t size : one.sizes) shape.Varint(static_cast<std::uint64_t>(size));
      const std::string packed = field == 6 ? one.data : numbers.Finish().Joined();
      inputs += Field(5, Field(1, one.name) + Field(2, one.datatype) +
                             Field(3, shape.Finish().Joined()) + Field(5, Field(field, packed)));
    }
    return inputs + Field(5, head + contents);
  };
  const std::vector<std::string> texts{"ab", "", "c"};
  const std::string first = Field(8, "ab") + Field(8, ""), last = Field(8, "c");
  for (const std::string& contents :
       {Field(5, first + last), Field(5, first) + Field(5, "") + Field(5, Field(99, "x") + last)}) {
    const std::string bytes = typed(contents);  // the texts are read from it
    EXPECT_EQ(Refusal(bytes), "no error");
    EXPECT_EQ(TextsOf(raw_.sparse.at(0)), texts);
  }
  EXPECT_EQ(Refusal(typed(Field(5, first))),
            "inputs['user.values']: got 2 texts, expected 3 (BYTES [3])");
  EXPECT_EQ(Refusal(typed("")), "inputs['user.values']: got 0 texts, expected 3 (BYTES [3])");
  EXPECT_EQ(Refusal(typed(Field(5, first + Number(3, 1)))),
            "inputs['user.values'].contents: got int64_contents, bytes_contents, expected "
            "bytes_contents for BYTES");
}

TEST(InputSpecsTest, AHashedInputIsListedWithTexts) {
  Signature signature = SmallSignature();
  signature.sparse[2].strings = "xxh64";
  std::vector<std::string> types;
  for (const TensorSpec& spec : InputSpecs(signature)) types.emplace_back(spec.datatype);
  EXPECT_EQ(types, (std::vector<std::string>{"FP32", "FP32", "INT64", "INT32", "INT64", "INT32",
                                             "BYTES", "INT32", "INT64", "INT32", "FP32"}));
}

TEST_F(ReadInputsTest, MoreTensorsThanTheModelCanHaveAreRefusedByTheirCount) {
  std::string bytes = Bytes(Good());
  for (int i = 0; i < 100'000; ++i) bytes.append("\x2a\x00", 2);
  EXPECT_EQ(Refusal(bytes), "inputs: got 100011 tensors, expected at most 14 for this model");
}

}  // namespace
}  // namespace recsys
