// Answers, byte for byte: what is expected here was written by Python's protobuf from the same
// answers.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/wire/messages.h"
#include "wire/infer/infer_response.h"
#include "wire/predict_messages.h"
#include "wire/torchrec_request.h"

namespace recsys {
namespace {

/// Rows of the two outputs of SmallSignature.
struct Answered {
  explicit Answered(std::int64_t rows) : num_rows(rows) {
    if (rows == 2) {
      texts = {Floats({0.5F, -1}), Floats({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})};
    } else {
      texts = {std::string(static_cast<std::size_t>(4 * rows), 'a'),
               std::string(static_cast<std::size_t>(24 * rows), 'b')};
    }
    values = {texts[0], texts[1]};
  }
  AnswerRows rows() const { return {num_rows, values, owner}; }

  std::int64_t num_rows;
  std::vector<std::string> texts;
  std::vector<std::string_view> values;
  std::shared_ptr<const void> owner = std::make_shared<int>(1);
};

constexpr char kResponse[] =
    "0a140a0573636f72651201021a080000003f000080bf0a400a07766563746f727312030202031a30000000000000"
    "803f0000004000004040000080400000a0400000c0400000e0400000004100001041000020410000304112057"
    "36d616c6c1a023966";

Message Response(const Answered& answered) {
  return WritePredictResponse("small", "9f", SmallSignature().outputs, answered.rows());
}

TEST(PredictResponseTest, AnAnswerIsWhatProtobufWrites) {
  EXPECT_EQ(Response(Answered(2)).Joined(), FromHex(kResponse));
}

TEST(PredictResponseTest, AnAnswerWithoutRowsHasNoValues) {
  EXPECT_EQ(Response(Answered(0)).Joined(),
            FromHex("0a0a0a0573636f72651201000a0e0a07766563746f727312030002031205736d616c6c1a02"
                    "3966"));
}

TEST(PredictResponseTest, SmallValuesAreCopiedAndLargeOnesLeftWhereTheyLie) {
  EXPECT_EQ(Response(Answered(2)).parts.size(), 1U);
  const Answered large(5000);  // 20 kB and 120 kB
  const Message message = Response(large);
  ASSERT_EQ(message.parts.size(), 3U);
  EXPECT_EQ(message.parts[1].view.data(), large.texts[1].data());
  EXPECT_EQ(message.parts[1].owner, large.owner);
  const std::string score =
      Field(1, "score") + Field(2, FromHex("8827")) + Field(3, large.texts[0]);
  const std::string vectors =
      Field(1, "vectors") + Field(2, FromHex("88270203")) + Field(3, large.texts[1]);
  EXPECT_TRUE(message.Joined() ==
              Field(1, score) + Field(1, vectors) + Field(2, "small") + Field(3, "9f"));
}

/// The same outputs, of which the second is int64: half as many numbers.
std::vector<Output> WithIntegers() {
  std::vector<Output> outputs = SmallSignature().outputs;
  outputs[1] = {"ids", {3}, OutputType::kInt64};
  return outputs;
}

TEST(PredictResponseTest, IntegersHaveAFieldOfTheirOwn) {
  const Answered answered(2);
  const std::string score =
      Field(1, "score") + Field(2, FromHex("02")) + Field(3, answered.texts[0]);
  const std::string ids = Field(1, "ids") + Field(2, FromHex("0203")) + Field(4, answered.texts[1]);
  EXPECT_EQ(WritePredictResponse("small", "9f", WithIntegers(), answered.rows()).Joined(),
            Field(1, score) + Field(1, ids) + Field(2, "small") + Field(3, "9f"));
}

TEST(PredictResponseTest, DimensionsOfTheBatchLieWhereTheOutputSays) {
  std::vector<Output> outputs = SmallSignature().outputs;
  outputs[0].batch_dims = {0, 1};
  outputs[1].batch_dims = {};
  const Answered answered(2);
  const std::string score =
      Field(1, "score") + Field(2, FromHex("0202")) + Field(3, answered.texts[0]);
  const std::string vectors =
      Field(1, "vectors") + Field(2, FromHex("0203")) + Field(3, answered.texts[1]);
  EXPECT_EQ(WritePredictResponse("small", "9f", outputs, answered.rows()).Joined(),
            Field(1, score) + Field(1, vectors) + Field(2, "small") + Field(3, "9f"));
}

TEST(PredictResponseTest, NoIntegersAreStillIntegers) {
  const std::string score = Field(1, "score") + Field(2, std::string(1, 0));
  const std::string ids = Field(1, "ids") + Field(2, FromHex("0003")) + Field(4, "");
  EXPECT_EQ(WritePredictResponse("small", "9f", WithIntegers(), Answered(0).rows()).Joined(),
            Field(1, score) + Field(1, ids) + Field(2, "small") + Field(3, "9f"));
}

TEST(StreamResponseTest, AnAnswerOnAStreamNamesItsRequest) {
  EXPECT_EQ(WriteStreamResponse("r1", Response(Answered(2))).Joined(),
            FromHex("0a0272311263" + std::string(kResponse)));
  EXPECT_EQ(WriteStreamResponse("", Response(Answered(2))).Joined(),
            FromHex("1263" + std::string(kResponse)));
}

TEST(StreamResponseTest, ALargeAnswerOnAStreamIsNotCopied) {
  const Answered large(5000);
  const Message message = WriteStreamResponse("r", Response(large));
  ASSERT_EQ(message.parts.size(), 3U);
  EXPECT_EQ(message.parts[1].view.data(), large.texts[1].data());
  EXPECT_TRUE(message.Joined() == Field(1, "r") + Field(2, Response(large).Joined()));
}

TEST(StreamResponseTest, AnErrorOnAStreamHasCodeTextAndWhenToComeBack) {
  EXPECT_EQ(WriteStreamError("", 8, "full", 300).Joined(), FromHex("1a0b0808120466756c6c18ac02"));
  EXPECT_EQ(WriteStreamError("x", 3, "no", 0).Joined(),
            Field(1, "x") + Field(3, Number(1, 3) + Field(2, "no")));
}

Message Infer(std::int64_t rows, const std::vector<std::size_t>& wanted, bool is_final = false) {
  return WriteInferResponse({"small", "9f", "a", wanted, is_final}, SmallSignature().outputs,
                            Answered(rows).rows());
}

constexpr char kInferHead[] = "0a05736d616c6c120239661a0161";
constexpr char kVectors[] =
    "3230000000000000803f0000004000004040000080400000a0400000c0400000e040000000410000104100002041"
    "00003041";

TEST(InferResponseTest, AnAnswerIsWhatProtobufWrites) {
  EXPECT_EQ(Infer(2, {}).Joined(),
            FromHex(std::string(kInferHead) +
                    "2a100a0573636f72651204465033321a01022a140a07766563746f72731204465033321a0302"
                    "020332080000003f000080bf" +
                    kVectors));
}

TEST(InferResponseTest, OutputsAreThoseThatWereWantedInTheirOrder) {
  EXPECT_EQ(
      Infer(2, {1}).Joined(),
      FromHex(std::string(kInferHead) + "2a140a07766563746f72731204465033321a03020203" + kVectors));
  EXPECT_EQ(Infer(2, {1, 0}).Joined(),
            FromHex(std::string(kInferHead) +
                    "2a140a07766563746f72731204465033321a030202032a100a0573636f7265120446503332"
                    "1a0102" +
                    kVectors + "32080000003f000080bf"));
}

TEST(InferResponseTest, IntegersAreInt64) {
  const Answered answered(2);
  const Message message =
      WriteInferResponse({"small", "9f", "a", {1}, false}, WithIntegers(), answered.rows());
  const std::string ids = Field(1, "ids") + Field(2, "INT64") + Field(3, FromHex("0203"));
  EXPECT_EQ(message.Joined(), FromHex(kInferHead) + Field(5, ids) + Field(6, answered.texts[1]));
}

TEST(InferResponseTest, AnAnswerWithoutRowsHasEmptyContents) {
  EXPECT_EQ(Infer(0, {}).Joined(),
            FromHex(std::string(kInferHead) +
                    "2a100a0573636f72651204465033321a01002a140a07766563746f72731204465033321a0300"
                    "020332003200"));
}

TEST(InferResponseTest, AnAnswerOnAStreamSaysThatItIsTheLast) {
  EXPECT_EQ(WriteInferStreamResponse(Infer(2, {}, true)).Joined(),
            FromHex("128f01" + std::string(kInferHead) +
                    "221b0a15747269746f6e5f66696e616c5f726573706f6e7365120208012a100a0573636f7265"
                    "1204465033321a01022a140a07766563746f72731204465033321a0302020332080000003f00"
                    "0080bf" +
                    kVectors));
}

TEST(InferResponseTest, AnErrorOnAStreamHasTextAndId) {
  EXPECT_EQ(WriteInferStreamError("a", "no").Joined(), FromHex("0a026e6f12031a0161"));
  EXPECT_EQ(WriteInferStreamError("", "no").Joined(), FromHex("0a026e6f1200"));
}

std::string Entry(std::string_view name, std::string_view floats) {
  return Field(1, Field(1, name) + Field(2, floats.empty() ? "" : Field(1, floats)));
}

TEST(TorchrecResponseTest, TheFirstOutputIsAlsoTheDefault) {
  const Answered answered(2);
  EXPECT_EQ(WriteTorchrecResponse(SmallSignature().outputs, answered.rows()).Joined(),
            Entry("score", answered.texts[0]) + Entry("vectors", answered.texts[1]) +
                Entry("default", answered.texts[0]));
}

TEST(TorchrecResponseTest, AnOutputThatIsCalledDefaultStaysItself) {
  const Answered answered(2);
  std::vector<Output> outputs = SmallSignature().outputs;
  outputs[1].name = "default";
  EXPECT_EQ(WriteTorchrecResponse(outputs, answered.rows()).Joined(),
            Entry("score", answered.texts[0]) + Entry("default", answered.texts[1]));
}

TEST(TorchrecResponseTest, AnAnswerWithoutRowsHasEveryOutput) {
  const Answered answered(0);
  EXPECT_EQ(WriteTorchrecResponse(SmallSignature().outputs, answered.rows()).Joined(),
            Entry("score", "") + Entry("vectors", "") + Entry("default", ""));
}

}  // namespace
}  // namespace recsys
