#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/log.h"
#include "server/observe/log_format.h"
#include "server/observe/log_writer.h"

namespace recsys {
namespace {

using namespace std::string_literals;

std::string ReadData(const std::string& name) {
  std::ifstream file(std::string(RECSYS_TEST_DATA) + "/observe/" + name);
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

/// That of tests/native/test_log_and_capture.py.
LogRecord EvilRecord() {
  const std::string evil =
      "x\"\n{\"level\": \"CRITICAL\"}\r\u2028\u202e\x1b[31m\0\x7f\U000e0001\u00e9\U0001f600="s;
  LogRecord record;
  record.level = LogLevel::kWarning;
  record.logger = "serve.requests";
  record.message = "got " + evil;
  record.time_s = 1.25;
  record.fields = {{"model", std::string("dlrm")},
                   {"version", std::string()},
                   {"request_id", evil},
                   {"num_rows", std::int64_t{3}},
                   {"share", 0.5},
                   {"ok", true},
                   {"duration_ms", 0.214},
                   {"nan", std::numeric_limits<double>::quiet_NaN()},
                   {"path", std::string("a\\b")},
                   {"quoted", std::string("a\"b")},
                   {"long", Repeated("\u00e9", 257)}};
  record.exception = "Traceback:\n  line \x1b\nthe end";
  return record;
}

TEST(LogFormat, JsonIsPythons) { EXPECT_EQ(JsonLine(EvilRecord()) + "\n", ReadData("line.json")); }

TEST(LogFormat, TextIsPythons) { EXPECT_EQ(TextLine(EvilRecord()) + "\n", ReadData("line.txt")); }

TEST(LogFormat, BytesThatAreNoUtf8CannotEndALine) {
  LogRecord record;
  record.message = "a\xff\n\xc3";
  record.time_s = 0.5;
  EXPECT_EQ(
      JsonLine(record),
      "{\"time\": \"1970-01-01T00:00:00.500000Z\", \"level\": \"INFO\", \"logger\": \"serve\", "
      "\"message\": \"a\\ufffd\\n\\ufffd\"}");
  EXPECT_EQ(TextLine(record), "1970-01-01T00:00:00.500000Z INFO serve: a\\xff\\n\\xc3");
}

TEST(LogFormat, LinesAreBoundedAndOfALongExceptionTheEndIsKept) {
  LogRecord record;
  record.message = std::string(1'000'000, 'm');
  record.fields = {{"id", std::string(1'000'000, 'r')}};
  record.exception = std::string(1'000'000, 'e') + " the end";
  for (const std::string& line : {JsonLine(record), TextLine(record)}) {
    EXPECT_LT(line.size(), 42'000U);
    EXPECT_NE(line.find(std::string(253, 'r') + "..."), line.npos);
    EXPECT_NE(line.find(" the end"), line.npos);
  }
}

/// Takes nothing until its gate opens.
class GatedStream : public LogStream {
 public:
  bool Write(const std::string& text) override {
    std::unique_lock<std::mutex> lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    text_ += text;
    return !is_gone_;
  }
  void Hurry(double /*until_s*/) override {}

  void WaitUntilReached() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }
  void Open(bool is_gone = false) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    is_gone_ = is_gone;
    changed_.notify_all();
  }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_reached_ = false;
  bool is_open_ = false;
  bool is_gone_ = false;
  std::string text_;
};

LogRecord Said(const std::string& message) {
  LogRecord record;
  record.message = message;
  return record;
}

TEST(LogWriter, MakesNobodyWaitForASlowReaderAndTellsWhatIsLost) {
  GatedStream stream;
  {
    LogWriter writer(stream, false, 10);
    writer.Take(Said("first"));
    stream.WaitUntilReached();
    for (int i = 0; i < 25; ++i) writer.Take(Said(std::to_string(i)));
    EXPECT_EQ(writer.num_dropped(), 15);
    stream.Open();
  }
  std::istringstream lines(stream.text());
  std::vector<std::string> messages;
  for (std::string line; std::getline(lines, line);) {
    messages.push_back(line.substr(line.find(": ") + 2));
  }
  std::vector<std::string> expected = {
      "first", "15 log records were lost: they came faster than they could be written"};
  for (int i = 0; i < 10; ++i) expected.push_back(std::to_string(i));
  EXPECT_EQ(messages, expected);
}

TEST(LogWriter, CountsWhatAStreamThatIsGoneDidNotTake) {
  GatedStream stream;
  stream.Open(true);
  LogWriter writer(stream, true);
  writer.Take(Said("one"));
  writer.Take(Said("two"));
  while (writer.num_dropped() < 2) std::this_thread::yield();
  EXPECT_GE(writer.num_dropped(), 2);
}

/// A pipe that nobody reads unless told.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    if (ends[0] >= 0) close(ends[0]);
    close(ends[1]);
  }
  int ends[2];
};

TEST(DescriptorStream, WritesAllOfLongTexts) {
  Pipe pipe;
  const std::string text(1 << 20, 'x');
  std::string got;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n = 0; got.size() < text.size() && (n = read(pipe.ends[0], buffer, 4096)) > 0;) {
      got.append(buffer, static_cast<std::size_t>(n));
    }
  });
  DescriptorStream stream(pipe.ends[1]);
  EXPECT_TRUE(stream.Write(text));
  reader.join();
  EXPECT_EQ(got, text);
}

TEST(DescriptorStream, ThatNobodyReadsKeepsNobodyFromTheEnd) {
  Pipe pipe;
  DescriptorStream stream(pipe.ends[1]);
  bool is_written = true;
  std::thread writer([&] { is_written = stream.Write(std::string(1 << 20, 'x')); });
  stream.Hurry(MonotonicSeconds());
  writer.join();
  EXPECT_FALSE(is_written);
}

TEST(DescriptorStream, SaysSoWhereTheOtherEndIsGone) {
  Pipe pipe;
  close(pipe.ends[0]);
  pipe.ends[0] = -1;
  const auto before = signal(SIGPIPE, SIG_IGN);
  DescriptorStream stream(pipe.ends[1]);
  EXPECT_FALSE(stream.Write("x"));
  signal(SIGPIPE, before);
}

TEST(Log, GoesToTheSinkThatIsSetWithItsTime) {
  std::vector<LogRecord> records;
  SetLogSink([&records](LogRecord record) { records.push_back(std::move(record)); });
  Log(LogLevel::kError, "broken");
  SetLogSink(nullptr);
  Log(LogLevel::kInfo, "to nobody");
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].message, "broken");
  EXPECT_EQ(records[0].logger, "serve");
  EXPECT_GT(records[0].time_s, 1.5e9);
}

}  // namespace
}  // namespace recsys
