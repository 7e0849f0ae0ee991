// The bearer token: who is let in, and what follows from its file.

#include <gtest/gtest.h>

#include <vector>

#include "certificates.h"
#include "recsys/error.h"
#include "server/rpc/token.h"

namespace recsys {
namespace {

const std::string kToken = "0123456789abcdef-token";
const std::string kOther = "another-token-of-some-length";

class FakeCall final : public Call {
 public:
  explicit FakeCall(std::vector<std::string> headers) : headers_(std::move(headers)) {}
  std::string_view Metadata(std::string_view key) const override {
    return key == "authorization" && !headers_.empty() ? std::string_view(headers_[0])
                                                       : std::string_view();
  }
  int CountMetadata(std::string_view key) const override {
    return key == "authorization" ? static_cast<int>(headers_.size()) : 0;
  }
  double deadline_s() const override { return 0; }
  std::string peer() const override { return {}; }

 private:
  std::vector<std::string> headers_;
};

class Token : public testing::Test {
 protected:
  void Write(const std::string& text, unsigned mode = 0600) { Replace(path_, text, mode); }
  static bool Passes(TokenCheck* check, const std::vector<std::string>& headers) {
    const Status status = check->Check(FakeCall(headers));
    EXPECT_TRUE(status.ok() || status.code == StatusCode::kUnauthenticated);
    EXPECT_EQ(status.text.find(kToken), std::string::npos);
    return status.ok();
  }

  Folder folder_;
  std::string path_ = folder_.Path("token");
  LogRecords log_;
};

TEST_F(Token, WhoDoesNotShowItIsRefused) {
  Write(kToken + "\n");
  TokenCheck check(path_);
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {""},
      {kToken},
      {"Bearer"},
      {"Bearer "},
      {"Basic " + kToken},
      {"bearer " + kToken},
      {"Bearer " + kOther},
      {"Bearer " + kToken + "x"},
      {"Bearer " + kToken.substr(1)},
      {"Bearer " + kToken, "Bearer " + kToken},
      {"Bearer wrong", "Bearer " + kToken},
  };
  for (const auto& headers : wrong) EXPECT_FALSE(Passes(&check, headers));
  EXPECT_TRUE(Passes(&check, {"Bearer " + kToken}));
}

TEST_F(Token, AChangedOneCountsAtOnceAndAFileThatCannotBeUsedLetsNobodyIn) {
  Write(kToken);
  TokenCheck check(path_);
  Write(kOther);
  EXPECT_TRUE(Passes(&check, {"Bearer " + kOther}));
  EXPECT_FALSE(Passes(&check, {"Bearer " + kToken}));
  std::remove(path_.c_str());
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(Passes(&check, {"Bearer " + kOther}));
  EXPECT_EQ(log_.Count("admin calls are refused until the token file can be used: "
                       "admin.token_file: cannot read"),
            1)
      << log_.Text();
  Write(kToken, 0644);
  EXPECT_FALSE(Passes(&check, {"Bearer " + kToken}));
  Write(kToken);
  EXPECT_TRUE(Passes(&check, {"Bearer " + kToken}));
  EXPECT_EQ(log_.Count("the admin token has changed"), 2);
  EXPECT_EQ(log_.Text().find(kToken), std::string::npos);
}

TEST_F(Token, AFileThatCannotBeUsedFromTheStartIsAnError) {
  EXPECT_THROW(TokenCheck{path_}, Error);
  Write("short");
  EXPECT_THROW(TokenCheck{path_}, Error);
}

}  // namespace
}  // namespace recsys
