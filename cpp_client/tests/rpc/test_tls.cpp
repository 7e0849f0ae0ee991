// TLS files that change under a live port, and clients' certificates.

#include <gtest/gtest.h>

#include "certificates.h"
#include "echo.h"
#include "recsys/error.h"
#include "server/rpc/tls_files.h"

namespace recsys {
namespace {

using grpc::StatusCode;

class Tls : public testing::Test {
 protected:
  void Write(const Pair& pair) {
    Replace(settings_.certificate, pair.certificate);
    Replace(settings_.key, pair.key);
  }
  void WriteAuthority(const std::string& certificate) {
    settings_.client_ca = folder_.Path("clients.crt");
    Replace(*settings_.client_ca, certificate);
  }
  void Serve() {
    RpcOptions options;
    options.tls = settings_;
    server_ = std::make_unique<RpcServer>(options, std::vector{echo_.Made()});
  }
  /// A new connection's first call; `trusted` is whose certificates the client takes.
  grpc::Status Ask(const std::string& trusted, const Pair& own = {}) {
    return ClientCall(NewChannel(trusted, own), "/test.Echo/Echo", "x").Wait();
  }
  std::shared_ptr<grpc::Channel> NewChannel(const std::string& trusted, const Pair& own = {}) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = trusted;
    options.pem_private_key = own.key;
    options.pem_cert_chain = own.certificate;
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.use_local_subchannel_pool", 1);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                     grpc::SslCredentials(options), arguments);
  }

  Folder folder_;
  Authority authority_;
  TlsSettings settings_ = {folder_.Path("server.crt"), folder_.Path("server.key"), std::nullopt};
  EchoService echo_;
  std::unique_ptr<RpcServer> server_;
  LogRecords log_;
};

TEST_F(Tls, NewConnectionsGetNewCertificatesAndOldConnectionsLiveOn) {
  const Authority second("second");
  Write(authority_.Issue());
  Serve();
  const auto old = NewChannel(authority_.certificate());
  EXPECT_TRUE(ClientCall(old, "/test.Echo/Echo", "x").Wait().ok());
  EXPECT_FALSE(Ask(second.certificate()).ok());
  Write(second.Issue());
  EXPECT_TRUE(Ask(second.certificate()).ok());
  EXPECT_EQ(Ask(authority_.certificate()).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(ClientCall(old, "/test.Echo/Echo", "x").Wait().ok());
  EXPECT_EQ(log_.Count("TLS files have changed: new connections get the new ones"), 1);
}

TEST_F(Tls, FilesThatCannotBeUsedKeepTheOldOnesAndAreComplainedOfOnce) {
  const Pair first = authority_.Issue();
  const std::function<void()> damages[] = {
      [this] { Replace(settings_.key, authority_.Issue().key); },
      [this] { std::remove(settings_.certificate.c_str()); },
      [this] { Replace(settings_.certificate, "no PEM"); },
      [this] { Replace(settings_.certificate, ""); },
  };
  for (const auto& damage : damages) {
    Write(first);
    Serve();
    const LogRecords log;
    damage();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(Ask(authority_.certificate()).ok());
    EXPECT_EQ(log.Count("the new TLS files cannot be used, connections get the old ones: tls."), 1)
        << log.Text();
    Write(authority_.Issue());
    EXPECT_TRUE(Ask(authority_.certificate()).ok());
    server_ = nullptr;
  }
}

TEST_F(Tls, ClientsMustShowACertificateAndThoseOfAnAuthorityThatIsGoneAreShutOut) {
  const Authority clients("clients");
  const Authority others("others");
  Write(authority_.Issue());
  WriteAuthority(clients.certificate());
  Serve();
  const Pair known = clients.Issue("client");
  const Pair stranger = others.Issue("stranger");
  EXPECT_TRUE(Ask(authority_.certificate(), known).ok());
  EXPECT_EQ(Ask(authority_.certificate()).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(authority_.certificate(), stranger).error_code(), StatusCode::UNAVAILABLE);
  WriteAuthority(others.certificate());
  EXPECT_EQ(Ask(authority_.certificate(), known).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(authority_.certificate(), stranger).ok());
}

TEST_F(Tls, WhoSpeaksInTheClearGetsNothing) {
  Write(authority_.Issue());
  Serve();
  const auto channel = ChannelTo(server_->port());
  EXPECT_EQ(ClientCall(channel, "/test.Echo/Echo", "x").Wait().error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(authority_.certificate()).ok());
}

TEST_F(Tls, BelowVersion12IsRefusedAndVersion12Taken) {
  Write(authority_.Issue());
  const std::shared_ptr<SSL_CTX> context = TlsFiles(settings_).context();
  EXPECT_EQ(SSL_CTX_get_min_proto_version(context.get()), TLS1_2_VERSION);
  WriteAuthority(authority_.certificate());
  EXPECT_EQ(SSL_CTX_get_min_proto_version(TlsFiles(settings_).context().get()), TLS1_3_VERSION);
}

TEST_F(Tls, APortDoesNotStartWithFilesThatCannotBeUsed) {
  Write(authority_.Issue());
  Replace(settings_.key, authority_.Issue().key);
  try {
    Serve();
    FAIL() << "a key of another certificate";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_EQ(std::string(error.what()).rfind("tls.certificate, tls.key: got '", 0), 0U)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("expected a certificate in PEM and its own key"),
              std::string::npos);
  }
}

TEST_F(Tls, FilesStayTheSameObjectsUntilTheyChange) {
  Write(authority_.Issue());
  TlsFiles files(settings_);
  const auto material = files.material();
  const auto context = files.context();
  EXPECT_EQ(files.material(), material);
  EXPECT_EQ(files.context(), context);
  const Pair second = authority_.Issue();
  Write(second);
  EXPECT_EQ(files.material()->certificate, second.certificate);
  EXPECT_NE(files.context(), context);
}

}  // namespace
}  // namespace recsys
