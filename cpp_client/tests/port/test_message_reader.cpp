// gRPC's messages out of bytes that come in any pieces.

#include <gtest/gtest.h>
#include <zlib.h>

#include "port/connection/call.h"
#include "port/framing/message_reader.h"

namespace recsys::http2 {
namespace {

std::string Prefixed(const std::string& data, char flag = 0) {
  std::string text(1, flag);
  for (int shift = 24; shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(data.size() >> shift & 0xff));
  }
  return text + data;
}

std::string Compressed(const std::string& data, int window_bits) {
  z_stream stream = {};
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, data.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string TakeText(MessageReader* reader) {
  Bytes message;
  const Status status = reader->Take(&message);
  EXPECT_TRUE(status.ok()) << status.text;
  return std::string(message.view);
}

TEST(MessageReader, MessagesComeWholeInWhateverPiecesTheirBytesCome) {
  const std::vector<std::string> messages = {"", "a", std::string(100000, 'b'), "", "cd"};
  std::string bytes;
  for (const std::string& one : messages) bytes += Prefixed(one);
  for (const std::size_t piece : {1UL, 3UL, 5UL, 7UL, 1000UL, bytes.size()}) {
    MessageReader reader(1 << 20, MessageEncoding::kIdentity);
    std::vector<std::string> got;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      reader.Add(std::string_view(bytes).substr(at, piece));
      while (reader.has_message()) got.push_back(TakeText(&reader));
    }
    EXPECT_EQ(got, messages) << piece;
    EXPECT_EQ(reader.held_bytes(), 0U);
    EXPECT_FALSE(reader.is_unfinished());
  }
}

TEST(MessageReader, ManyMessagesThatCameAtOnceAreTakenOneByOne) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += Prefixed(std::to_string(i));
  MessageReader reader(1 << 20, MessageEncoding::kIdentity);
  reader.Add(bytes);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(reader.has_message());
    EXPECT_EQ(TakeText(&reader), std::to_string(i));
  }
  EXPECT_FALSE(reader.has_message());
}

TEST(MessageReader, AnAnnouncedLengthTakesNoMemoryBeforeItsBytesCome) {
  MessageReader reader(1 << 30, MessageEncoding::kIdentity);
  reader.Add(std::string("\0\x3f\xff\xff\xff", 5));
  reader.Add("abc");
  EXPECT_TRUE(reader.is_unfinished());
  EXPECT_EQ(reader.announced_bytes(), 0x3fffffffU);
  EXPECT_EQ(reader.held_bytes(), 8U);
}

TEST(MessageReader, ALargeMessageIsRefusedWithBothSizesAsSoonAsItIsAnnounced) {
  MessageReader reader(1000, MessageEncoding::kIdentity);
  reader.Add(Prefixed("first") + std::string("\0\0\0\x03\xe9", 5));
  // The one before is still there.
  EXPECT_EQ(TakeText(&reader), "first");
  EXPECT_FALSE(reader.has_message());
  EXPECT_EQ(reader.failure().code, StatusCode::kResourceExhausted);
  EXPECT_EQ(reader.failure().text, "Received message larger than max (1001 vs. 1000)");
}

TEST(MessageReader, FlagsThatAreNoneAreRefused) {
  for (const char flag : {'\1', '\2', '\xff'}) {
    MessageReader reader(1000, MessageEncoding::kIdentity);
    reader.Add(Prefixed("x", flag));
    EXPECT_FALSE(reader.has_message());
    EXPECT_EQ(reader.failure().code, StatusCode::kInternal);
  }
}

TEST(MessageReader, CompressedMessagesAreInflatedWithinTheBound) {
  const std::string text(100000, 'z');
  for (const bool is_gzip : {true, false}) {
    const auto encoding = is_gzip ? MessageEncoding::kGzip : MessageEncoding::kDeflate;
    const std::string data = Compressed(text, is_gzip ? 15 + 16 : 15);
    MessageReader reader(100000, encoding);
    reader.Add(Prefixed(data, 1) + Prefixed("plain"));
    EXPECT_EQ(TakeText(&reader), text);
    EXPECT_EQ(TakeText(&reader), "plain");

    MessageReader narrow(99999, encoding);
    narrow.Add(Prefixed(data, 1));
    Bytes message;
    EXPECT_EQ(narrow.Take(&message).code, StatusCode::kResourceExhausted);

    for (const std::string& wrong :
         {data.substr(0, data.size() / 2), data + "more", std::string("no zlib"), std::string()}) {
      MessageReader broken(100000, encoding);
      broken.Add(Prefixed(wrong, 1));
      EXPECT_EQ(broken.Take(&message).code, StatusCode::kInternal) << wrong.size();
    }
  }
}

TEST(MessageReader, WhatIsDroppedIsFree) {
  MessageReader reader(1 << 20, MessageEncoding::kIdentity);
  reader.Add(Prefixed("one") + Prefixed(std::string(1000, 'x')).substr(0, 500));
  reader.Drop();
  EXPECT_EQ(reader.held_bytes(), 0U);
  EXPECT_FALSE(reader.has_message());
}

TEST(OutgoingMessages, LeaveInAnyPiecesAndEachIsTold) {
  const auto owner = std::make_shared<const std::string>(10000, 'l');
  for (const std::size_t piece : {1UL, 5UL, 4000UL, 1UL << 20}) {
    OutgoingMessages outgoing;
    std::vector<int> told;
    Message large = Message::Of("head");
    large.parts.push_back({*owner, owner});
    outgoing.Add(Message::Of("small"), [&](bool ok) { told.push_back(ok ? 1 : -1); });
    outgoing.Add(std::move(large), {});
    outgoing.Add({}, [&](bool ok) { told.push_back(ok ? 2 : -2); });
    std::string out;
    std::vector<Written> written;
    while (outgoing.num_bytes() > 0) {
      outgoing.CopyTo(std::min(piece, outgoing.num_bytes()), &out, &written);
    }
    EXPECT_EQ(out, Prefixed("small") + Prefixed("head" + *owner) + Prefixed(""));
    EXPECT_EQ(owner.use_count(), 1);
    for (const Written& one : written) one(true);
    EXPECT_EQ(told, (std::vector<int>{1, 2}));
  }
}

TEST(OutgoingMessages, WhatIsForgottenIsTold) {
  OutgoingMessages outgoing;
  outgoing.Add(Message::Of("one"), [](bool) {});
  outgoing.Add(Message::Of(std::string(10000, 'x')), [](bool) {});
  std::vector<Written> written;
  std::string out;
  outgoing.CopyTo(3, &out, &written);
  EXPECT_TRUE(written.empty());
  outgoing.Clear(&written);
  EXPECT_EQ(written.size(), 2U);
  EXPECT_EQ(outgoing.num_bytes(), 0U);
}

}  // namespace
}  // namespace recsys::http2
