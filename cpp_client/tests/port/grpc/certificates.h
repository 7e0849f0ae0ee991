#ifndef RECSYS_TESTS_PORT_GRPC_CERTIFICATES_H_
#define RECSYS_TESTS_PORT_GRPC_CERTIFICATES_H_

// Certificates made on the fly: an authority, and what it signs.

#include <memory>
#include <string>

namespace recsys {

/// A certificate and its key, both in PEM.
struct Pair {
  std::string certificate;
  std::string key;
};

/// Signs certificates for loopback; nobody trusts it but the test.
class Authority {
 public:
  explicit Authority(const std::string& name = "test authority");
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;
  const std::string& certificate() const { return certificate_; }
  /// Makes the certificate of a server or a client, with a serial number of its own.
  Pair Issue(const std::string& name = "localhost") const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::string certificate_;
};

/// Takes all records of the log while it lives.
class LogRecords {
 public:
  LogRecords();
  ~LogRecords();
  LogRecords(const LogRecords&) = delete;
  LogRecords& operator=(const LogRecords&) = delete;
  /// How many of the records begin so.
  int Count(const std::string& beginning) const;
  /// All of them, a line each.
  std::string Text() const;

 private:
  struct Lines;
  std::shared_ptr<Lines> lines_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_PORT_GRPC_CERTIFICATES_H_
