// TLS files that change under a live port, and clients' certificates.

#include <gtest/gtest.h>

#include "certificates.h"
#include "echo.h"
#include "port/net/tls.h"
#include "recsys/error.h"
#include "tests/port/threads.h"

namespace recsys {
namespace {

using grpc::StatusCode;

class Tls : public testing::Test {
 protected:
  void Serve(const TlsPem& pem) {
    RpcOptions options;
    options.num_threads = TestThreads();
    options.balance = RestlessBalance();
    options.tls = store_ = std::make_shared<TlsStore>(pem);
    server_ = std::make_unique<RpcServer>(options, std::vector{echo_.Made()});
  }
  static TlsPem PemOf(const Pair& pair, std::optional<std::string> client_ca = std::nullopt) {
    return {pair.certificate, pair.key, std::move(client_ca)};
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

  Authority authority_;
  EchoService echo_;
  std::shared_ptr<TlsStore> store_;
  std::unique_ptr<RpcServer> server_;
};

std::string RefusalOf(const TlsPem& pem) {
  try {
    const TlsStore store(pem);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST_F(Tls, NewConnectionsGetNewCertificatesAndOldConnectionsLiveOn) {
  const Authority second("second");
  Serve(PemOf(authority_.Issue()));
  const auto old = NewChannel(authority_.certificate());
  EXPECT_TRUE(ClientCall(old, "/test.Echo/Echo", "x").Wait().ok());
  EXPECT_FALSE(Ask(second.certificate()).ok());
  store_->Set(PemOf(second.Issue()));
  EXPECT_TRUE(Ask(second.certificate()).ok());
  EXPECT_EQ(Ask(authority_.certificate()).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(ClientCall(old, "/test.Echo/Echo", "x").Wait().ok());
}

TEST_F(Tls, MaterialThatCannotBeUsedIsRefusedAndTheOldOneStays) {
  const Pair first = authority_.Issue();
  Serve(PemOf(first));
  const TlsPem wrong[] = {{first.certificate, authority_.Issue().key, std::nullopt},
                          {"no PEM", first.key, std::nullopt},
                          {"", "", std::nullopt},
                          {first.certificate, first.key, authority_.certificate()}};
  for (const TlsPem& pem : wrong) {
    EXPECT_THROW(store_->Set(pem), Error);
    EXPECT_TRUE(Ask(authority_.certificate()).ok());
  }
  EXPECT_EQ(RefusalOf(wrong[0]).rfind("tls.certificate, tls.key: expected a certificate in PEM", 0),
            0U);
  EXPECT_EQ(RefusalOf({first.certificate, first.key, "no PEM"}).rfind("tls.client_ca: ", 0), 0U);
}

TEST_F(Tls, ClientsMustShowACertificateAndThoseOfAnAuthorityThatIsGoneAreShutOut) {
  const Authority clients("clients");
  const Authority others("others");
  const Pair own = authority_.Issue();
  Serve(PemOf(own, clients.certificate()));
  const Pair known = clients.Issue("client");
  const Pair stranger = others.Issue("stranger");
  EXPECT_TRUE(Ask(authority_.certificate(), known).ok());
  EXPECT_EQ(Ask(authority_.certificate()).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(authority_.certificate(), stranger).error_code(), StatusCode::UNAVAILABLE);
  store_->Set(PemOf(own, others.certificate()));
  EXPECT_EQ(Ask(authority_.certificate(), known).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(authority_.certificate(), stranger).ok());
}

TEST_F(Tls, AClientThatSpeaksInTheClearGetsNothing) {
  Serve(PemOf(authority_.Issue()));
  const auto channel = ChannelTo(server_->port());
  EXPECT_EQ(ClientCall(channel, "/test.Echo/Echo", "x").Wait().error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(authority_.certificate()).ok());
}

}  // namespace
}  // namespace recsys
