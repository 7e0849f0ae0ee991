#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "recsys/error.h"
#include "server/observe/capture_file.h"
#include "server/observe/crc32.h"

namespace recsys {
namespace {

using namespace std::string_literals;

std::string DataPath() { return std::string(RECSYS_TEST_DATA) + "/observe/requests.capture"; }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// A file of its own that goes away again.
class Scratch {
 public:
  explicit Scratch(const std::string& data) {
    path_ = testing::TempDir() + "recsys-capture-XXXXXX";
    close(mkstemp(path_.data()));
    std::ofstream(path_, std::ios::binary) << data;
  }
  ~Scratch() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// That of tests/native/test_log_and_capture.py.
std::vector<CapturedRequest> Expected() {
  static const std::string price = "\0\0\x80?\0\0\x80?"s;
  static const std::string lengths = "\1\0\0\0\1\0\0\0"s;
  static const std::string ids = "\7"s + std::string(15, '\0');
  static const std::string weights = "\0\0\0?\0\0\0?"s;
  static const std::string zero(4, '\0');
  RawRequest raw;
  raw.num_rows = 2;
  raw.dense = {{"price", price}};
  raw.sparse = {{"user", lengths, ids, weights}};
  raw.context_dense = {{"", ""}};
  raw.context_sparse = {{"tags", zero, "", ""}};
  return {{5, "dlrm", "7", SerializedForCapture(raw)},
          {std::uint64_t{1} << 40, "\u00e9", "", SerializedForCapture(RawRequest())}};
}

TEST(CaptureFile, IsByteForByteWhatPythonWrites) {
  std::string data = CaptureHeader(1'700'000'000'000'000);
  for (const CapturedRequest& request : Expected()) data += CaptureRecord(request);
  EXPECT_EQ(data, ReadFile(DataPath()));
}

TEST(CaptureFile, ReadsWhatPythonWrites) {
  CaptureReader reader(DataPath());
  EXPECT_EQ(reader.began_us(), 1'700'000'000'000'000U);
  for (const CapturedRequest& expected : Expected()) {
    const auto found = reader.Next();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->time_us, expected.time_us);
    EXPECT_EQ(found->model, expected.model);
    EXPECT_EQ(found->version, expected.version);
    EXPECT_EQ(found->data, expected.data);
  }
  EXPECT_FALSE(reader.Next());
  EXPECT_EQ(reader.num_cut_bytes(), 0U);
}

/// How reading all of it ends: "" for well, or the error's text.
std::string EndOf(const std::string& data) {
  const Scratch file(data);
  try {
    CaptureReader reader(file.path());
    while (reader.Next()) {
    }
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCapture);
    return error.what();
  }
}

TEST(CaptureFile, ThatWasCutOffIsReadUpToThere) {
  const std::string data = ReadFile(DataPath());
  const std::size_t first = 24 + CaptureRecord(Expected()[0]).size();
  for (std::size_t size = 24; size < data.size(); ++size) {
    const Scratch file(data.substr(0, size));
    CaptureReader reader(file.path());
    int count = 0;
    while (reader.Next()) ++count;
    EXPECT_EQ(count, size < first ? 0 : 1) << size;
    EXPECT_EQ(reader.num_cut_bytes(), size - (size < first ? 24 : first)) << size;
  }
}

TEST(CaptureFile, NamesWhatIsDamagedWhicheverByteItIs) {
  const std::string data = ReadFile(DataPath());
  for (std::size_t at = 0; at < data.size(); ++at) {
    std::string damaged = data;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    const std::string end = EndOf(damaged);
    EXPECT_TRUE(end.rfind("header: ", 0) == 0 || end.rfind("record ", 0) == 0) << at << end;
  }
}

TEST(CaptureFile, SaysWhatIsWrongWithAHeader) {
  EXPECT_EQ(EndOf(""), "header: got b'', expected b'RECSCAP\\n': this is not a capture");
  EXPECT_EQ(EndOf("it's\n\x01 no capture at all"),
            "header: got b\"it's\\n\\x01 n\", expected b'RECSCAP\\n': this is not a capture");
  std::string newer = CaptureHeader(0).substr(0, 20);
  newer[8] = 2;
  const std::uint32_t crc = Crc32(newer);
  for (int i = 0; i < 4; ++i) newer += static_cast<char>(crc >> (8 * i) & 0xFF);
  EXPECT_EQ(EndOf(newer), "header: got version 2, expected 1: use the release that wrote it");
}

TEST(CaptureFile, SaysWhatIsWrongWithARecordThatFitsItsChecksums) {
  const auto record = [](const std::string& body) {
    std::string head;
    const auto append = [&head](std::uint64_t number) {
      for (int i = 0; i < 4; ++i) head += static_cast<char>(number >> (8 * i) & 0xFF);
    };
    append(body.size());
    append(Crc32(body));
    append(Crc32(head));
    return CaptureHeader(0) + head + body;
  };
  EXPECT_EQ(EndOf(record("abc")), "record 1, at byte 24: got 3 bytes, expected at least 12");
  EXPECT_EQ(EndOf(record("12345678\x05\0\x01\0abc"s)),
            "record 1, at byte 24: got names of 5 and 1 bytes in 15 bytes");
  EXPECT_EQ(EndOf(record("12345678\x01\0\x00\0\xff"s)),
            "record 1, at byte 24: got names that are not UTF-8");
}

TEST(CaptureFile, ThatIsNoneIsNamedWithoutItsFolder) {
  try {
    CaptureReader reader(testing::TempDir() + "no-such.capture");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "capture no-such.capture: cannot be read: No such file or directory");
  }
  try {
    CaptureReader reader("/dev/null");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "capture null: got something else, expected a file");
  }
}

TEST(Crc32, IsZlibs) {
  EXPECT_EQ(Crc32(""), 0U);
  EXPECT_EQ(Crc32("123456789"), 0xCBF43926U);
  EXPECT_EQ(Crc32(std::string(1000, 'a')), 0x9A38DA03U);
}

}  // namespace
}  // namespace recsys
