#include "server/rpc/port_credentials.h"

#include <grpc/grpc_security.h>

#include <utility>

namespace recsys {

PortCredentials::PortCredentials(std::unique_ptr<TlsFiles> files,
                                 std::function<void(grpc_server*)> on_server)
    : files_(std::move(files)), on_server_(std::move(on_server)) {
  credentials_ = files_ == nullptr ? grpc_insecure_server_credentials_create() : MakeTls();
}

PortCredentials::~PortCredentials() { grpc_server_credentials_release(credentials_); }

grpc_server_credentials* PortCredentials::MakeTls() {
  const bool is_mutual = files_->material()->client_ca.has_value();
  const auto asked = is_mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                               : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  // gRPC frees the options with the credentials.
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          asked, &PortCredentials::Fetch, this));
}

int PortCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  on_server_(server);
  return grpc_server_add_http2_port(server, address.c_str(), credentials_);
}

grpc_ssl_certificate_config_reload_status PortCredentials::Fetch(
    void* self, grpc_ssl_server_certificate_config** config) {
  auto& credentials = *static_cast<PortCredentials*>(self);
  try {
    const std::shared_ptr<const TlsMaterial> material = credentials.files_->material();
    if (material == credentials.handed_out_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {material->key.c_str(), material->certificate.c_str()};
    // gRPC 1.51 insists on authorities, also where no client is asked for a certificate: there they
    // have no effect, and our own certificate is as good as any.
    const std::string& authorities =
        material->client_ca ? *material->client_ca : material->certificate;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    credentials.handed_out_ = material;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  } catch (...) {
    // No memory, say: the handshake goes on with what gRPC has.
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
  }
}

}  // namespace recsys
