#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "base/log.h"
#include "recsys/error.h"
#include "server/watch/capture.h"

namespace recsys {
namespace {

using Counts = std::map<std::string, std::int64_t>;

/// A folder of its own that goes away again, with one file in it.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "recsys-capture-XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~Folder() {
    unlink(file().c_str());
    rmdir(path_.c_str());
  }
  std::string file() const { return path_ + "/requests.capture"; }

 private:
  std::string path_;
};

CaptureSettings SettingsOf(const Folder& folder) {
  CaptureSettings settings;
  settings.path = folder.file();
  settings.share = 0.5;
  return settings;
}

Capture::Options Drawing(double draw) {
  Capture::Options options;
  options.draw = [draw] { return draw; };
  return options;
}

RawRequest RequestOf(std::int64_t num_rows, std::string_view values) {
  RawRequest raw;
  raw.num_rows = num_rows;
  raw.dense = {{"price", values}};
  return raw;
}

std::vector<CapturedRequest> ReadAll(const std::string& path) {
  CaptureReader reader(path);
  std::vector<CapturedRequest> found;
  while (auto request = reader.Next()) found.push_back(std::move(*request));
  EXPECT_EQ(reader.num_cut_bytes(), 0U);
  return found;
}

/// What is said while it lives.
class Heard {
 public:
  Heard() {
    SetLogSink([this](LogRecord record) { records_.push_back(std::move(record)); });
  }
  ~Heard() { SetLogSink(nullptr); }
  const std::vector<LogRecord>& records() const { return records_; }

 private:
  std::vector<LogRecord> records_;
};

TEST(Capture, WritesWhatIsOfferedInTheOrderOfItsTimes) {
  const Folder folder;
  double now_s = 100.0;
  auto options = Drawing(0.49);
  options.clock = [&now_s] { return now_s; };
  Capture capture(SettingsOf(folder), options);
  for (int i = 1; i <= 3; ++i) {
    now_s += 0.5;
    const RawRequest raw = RequestOf(i, "abcd");
    capture.Offer(raw, "dlrm", std::to_string(i));
  }
  capture.Close();
  EXPECT_EQ(capture.Counts(), (Counts{{"written", 3}, {"dropped", 0}, {"failed", 0}}));
  const auto found = ReadAll(folder.file());
  ASSERT_EQ(found.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i].time_us, 500'000 * (i + 1));
    EXPECT_EQ(found[i].model, "dlrm");
    EXPECT_EQ(found[i].version, std::to_string(i + 1));
    EXPECT_EQ(found[i].data,
              SerializedForCapture(RequestOf(static_cast<std::int64_t>(i + 1), "abcd")));
  }
}

TEST(Capture, LeavesOutWhatIsNotDrawn) {
  const Folder folder;
  Capture capture(SettingsOf(folder), Drawing(0.5));
  capture.Offer(RequestOf(1, "abcd"), "dlrm", "1");
  capture.Close();
  EXPECT_EQ(capture.Counts(), (Counts{{"written", 0}, {"dropped", 0}, {"failed", 0}}));
  EXPECT_TRUE(ReadAll(folder.file()).empty());
}

TEST(Capture, FileIsItsOwnersAloneAndReplacesAnOldOne) {
  const Folder folder;
  std::ofstream(folder.file()) << "old";
  chmod(folder.file().c_str(), 0666);
  { Capture capture(SettingsOf(folder), Drawing(0)); }
  struct stat about {};
  ASSERT_EQ(stat(folder.file().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600U);
  EXPECT_TRUE(ReadAll(folder.file()).empty());
}

TEST(Capture, LeavesAloneWhatIsNoFile) {
  const Folder folder;
  ASSERT_EQ(symlink("/dev/null", folder.file().c_str()), 0);
  try {
    Capture capture(SettingsOf(folder), Drawing(0));
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.what(), "capture: " + folder.file() +
                                " is not a file, and stays as it is; name another path");
  }
  struct stat about {};
  ASSERT_EQ(lstat(folder.file().c_str(), &about), 0);
  EXPECT_TRUE(S_ISLNK(about.st_mode));
}

TEST(Capture, SaysWhyItCannotBegin) {
  CaptureSettings settings;
  settings.path = "/nowhere/at/all";
  try {
    Capture capture(settings, Drawing(0));
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_STREQ(error.what(), "[Errno 2] No such file or directory: '/nowhere/at/all'");
  }
}

TEST(Capture, IsCompleteAtItsLimit) {
  const Folder folder;
  const Heard heard;
  CaptureSettings settings = SettingsOf(folder);
  settings.max_bytes = 200;
  Capture capture(settings, Drawing(0));
  for (int i = 0; i < 10; ++i) capture.Offer(RequestOf(1, std::string(50, 'x')), "dlrm", "1");
  capture.Close();
  const auto found = ReadAll(folder.file());
  EXPECT_EQ(found.size(), 1U);
  EXPECT_EQ(capture.Counts(), (Counts{{"written", 1}, {"dropped", 9}, {"failed", 0}}));
  ASSERT_EQ(heard.records().size(), 1U);
  EXPECT_EQ(heard.records()[0].logger, "serve.capture");
  EXPECT_EQ(heard.records()[0].message.rfind("the capture is complete: it has ", 0), 0U);
}

TEST(Capture, DropsWhatIsTooMuchToWait) {
  const Folder folder;
  Capture capture(SettingsOf(folder), Drawing(0));
  const std::string huge((64 << 20) + 1, 'x');
  capture.Offer(RequestOf(1, huge), "dlrm", "1");
  capture.Close();
  EXPECT_EQ(capture.Counts(), (Counts{{"written", 0}, {"dropped", 1}, {"failed", 0}}));
}

TEST(Capture, DropsWhatComesOnceItIsClosed) {
  const Folder folder;
  Capture capture(SettingsOf(folder), Drawing(0));
  capture.Close();
  capture.Offer(RequestOf(1, "abcd"), "dlrm", "1");
  EXPECT_EQ(capture.Counts().at("dropped"), 1);
}

TEST(Capture, OfAFullDiskIsCountedToldOnceAndGoesOnWhereThereIsRoomAgain) {
  const Folder folder;
  const Heard heard;
  const auto before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  CaptureOutput output(folder.file());
  int error = 0;
  ASSERT_TRUE(output.Append(CaptureHeader(0), &error));
  const rlimit tight{100, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  EXPECT_FALSE(output.Append(std::string(200, 'x'), &error));
  EXPECT_EQ(error, EFBIG);
  EXPECT_EQ(output.size(), 24U);
  {
    Capture capture(SettingsOf(folder), Drawing(0));
    for (int i = 0; i < 3; ++i) capture.Offer(RequestOf(1, std::string(200, 'x')), "dlrm", "1");
    while (capture.Counts().at("failed") < 3) std::this_thread::yield();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    capture.Offer(RequestOf(1, std::string(200, 'x')), "dlrm", "1");
    capture.Close();
    EXPECT_EQ(capture.Counts(), (Counts{{"written", 1}, {"dropped", 0}, {"failed", 3}}));
  }
  signal(SIGXFSZ, before);
  EXPECT_EQ(ReadAll(folder.file()).size(), 1U);
  ASSERT_EQ(heard.records().size(), 1U);
  EXPECT_EQ(heard.records()[0].message,
            "a request could not be captured: File too large; serving goes on, further failures "
            "are only counted");
}

}  // namespace
}  // namespace recsys
