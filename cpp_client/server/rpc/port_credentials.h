#ifndef RECSYS_SERVER_RPC_PORT_CREDENTIALS_H_
#define RECSYS_SERVER_RPC_PORT_CREDENTIALS_H_

#include <grpc/grpc.h>
#include <grpcpp/security/server_credentials.h>

#include <functional>
#include <memory>

#include "server/rpc/tls_files.h"

namespace recsys {

/// How a port's connections are secured: in the clear, or with TLS whose files are looked at before
/// each handshake.
///
/// gRPC's C++ API knows neither certificates that come from a function nor methods of the C API;
/// both are to be had from here, because gRPC asks the credentials to add a port to its server
/// before it starts.
class PortCredentials final : public grpc::ServerCredentials {
 public:
  /// `files` is null for the clear. `on_server` is called with the server before it starts.
  PortCredentials(std::unique_ptr<TlsFiles> files, std::function<void(grpc_server*)> on_server);
  ~PortCredentials() override;
  PortCredentials(const PortCredentials&) = delete;
  PortCredentials& operator=(const PortCredentials&) = delete;

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override;
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config);
  grpc_server_credentials* MakeTls();

  const std::unique_ptr<TlsFiles> files_;
  const std::function<void(grpc_server*)> on_server_;
  /// What gRPC has of the files; it asks one at a time.
  std::shared_ptr<const TlsMaterial> handed_out_;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_PORT_CREDENTIALS_H_
