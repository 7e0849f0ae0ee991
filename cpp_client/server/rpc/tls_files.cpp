#include "server/rpc/tls_files.h"

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "recsys/error.h"

namespace recsys {
namespace {

struct FreeSslContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

std::vector<std::string> PathsOf(const TlsSettings& settings) {
  std::vector<std::string> paths = {settings.certificate, settings.key};
  if (settings.client_ca) paths.push_back(*settings.client_ca);
  return paths;
}

}  // namespace

std::shared_ptr<SSL_CTX> MakeSslContext(const TlsSettings& settings, const TlsMaterial& material) {
  std::unique_ptr<SSL_CTX, FreeSslContext> context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) throw Error(ErrorKind::kInternal, "tls: OpenSSL makes no context");
  SSL_CTX_set_min_proto_version(context.get(),
                                material.client_ca ? TLS1_3_VERSION : TLS1_2_VERSION);
  // A session that is resumed shows no certificate again, whoever may have been shut out since.
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(),
                      SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  UseTls(context.get(), settings, material);
  return context;
}

TlsFiles::TlsFiles(TlsSettings settings)
    : settings_(std::move(settings)),
      stamp_(StampOf(PathsOf(settings_))),
      material_(std::make_shared<const TlsMaterial>(ReadTls(settings_))),
      context_(MakeSslContext(settings_, *material_)) {}

std::shared_ptr<const TlsMaterial> TlsFiles::material() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Refresh();
  return material_;
}

std::shared_ptr<SSL_CTX> TlsFiles::context() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Refresh();
  return context_;
}

void TlsFiles::Refresh() {
  FileStamp stamp = StampOf(PathsOf(settings_));
  if (stamp == stamp_) return;
  // Kept before they are read: what changes meanwhile is seen as one more change. Files that cannot
  // be used are complained of once, not at every handshake.
  stamp_ = std::move(stamp);
  try {
    auto material = std::make_shared<const TlsMaterial>(ReadTls(settings_));
    context_ = MakeSslContext(settings_, *material);
    material_ = std::move(material);
  } catch (const Error& error) {
    Log(LogLevel::kError,
        std::string("the new TLS files cannot be used, connections get the old ones: ") +
            error.what());
    return;
  }
  Log(LogLevel::kInfo, "TLS files have changed: new connections get the new ones");
}

}  // namespace recsys
