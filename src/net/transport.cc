#include "net/transport.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/format.h"

namespace millrace::net {
namespace {

using Kind = IoResult::Kind;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(int fd) : fd_(fd) {}

  IoResult handshake() override { return {Kind::kDone}; }

  IoResult read(std::span<char> buffer) override {
    const ssize_t n = ::recv(fd_, buffer.data(), buffer.size(), 0);
    if (n > 0) return {Kind::kDone, size_t(n)};
    if (n == 0) return {Kind::kEnd};
    if (would_block(errno)) return {Kind::kWantsRead};
    errno_ = errno;
    return {Kind::kFailed};
  }

  IoResult write(std::string_view bytes) override {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) return {Kind::kDone, size_t(n)};
    if (would_block(errno)) return {Kind::kWantsWrite};
    errno_ = errno;
    return {Kind::kFailed};
  }

  bool has_buffered() const override { return false; }
  void shutdown_write() override { ::shutdown(fd_, SHUT_WR); }
  std::string error_text() const override { return errno_text(errno_); }

 private:
  const int fd_;
  int errno_ = 0;
};

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL: a peer that has gone would end the process.
int bio_fd(BIO* bio) { return int(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int bio_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(bio_fd(bio), data, size_t(size), 0);
  if (n < 0 && would_block(errno)) BIO_set_retry_read(bio);
  return int(n);
}

int bio_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::send(bio_fd(bio), data, size_t(size), MSG_NOSIGNAL);
  if (n < 0 && would_block(errno)) BIO_set_retry_write(bio);
  return int(n);
}

long bio_ctrl(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO* make_bio(int fd) {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    MR_CHECK(m != nullptr);
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_ctrl(m, bio_ctrl);
    return m;
  }();
  BIO* bio = BIO_new(method);
  MR_CHECK(bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(intptr_t(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

// Empties OpenSSL's queue of errors.
std::string openssl_errors() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    if (ERR_SYSTEM_ERROR(error)) {  // the others only say that there is one
      ERR_clear_error();
      return errno_text(ERR_GET_REASON(error));
    }
    const char* reason = ERR_reason_error_string(error);
    if (!text.empty()) text += ", ";
    text += reason ? reason : format("error ", error).c_str();
  }
  return text.empty() ? "unknown error" : text;
}

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContextPtr = std::unique_ptr<SSL_CTX, SslDeleter>;

class TlsTransport : public Transport {
 public:
  // OpenSSL counts the references to the context itself.
  TlsTransport(SSL_CTX* context, int fd) : fd_(fd), ssl_(SSL_new(context)) {
    MR_CHECK(ssl_ != nullptr);
    BIO* bio = make_bio(fd);
    SSL_set_bio(ssl_.get(), bio, bio);
  }

  SSL* ssl() { return ssl_.get(); }

  IoResult handshake() override {
    ERR_clear_error();
    const IoResult result = outcome(SSL_do_handshake(ssl_.get()));
    is_through_ = result.kind == Kind::kDone;
    return result;
  }
  IoResult read(std::span<char> buffer) override {
    ERR_clear_error();
    return outcome(
        SSL_read(ssl_.get(), buffer.data(), int(std::min<size_t>(buffer.size(), INT32_MAX))));
  }
  IoResult write(std::string_view bytes) override {
    ERR_clear_error();
    return outcome(
        SSL_write(ssl_.get(), bytes.data(), int(std::min<size_t>(bytes.size(), INT32_MAX))));
  }
  bool has_buffered() const override { return SSL_has_pending(ssl_.get()) == 1; }
  void shutdown_write() override {
    ERR_clear_error();
    if (is_through_ && !has_failed_) SSL_shutdown(ssl_.get());
    ::shutdown(fd_, SHUT_WR);
  }
  std::string error_text() const override { return error_; }

 private:
  IoResult outcome(int n) {
    if (n > 0) return {Kind::kDone, size_t(n)};
    const int error = errno;
    switch (SSL_get_error(ssl_.get(), n)) {
      case SSL_ERROR_WANT_READ: return {Kind::kWantsRead};
      case SSL_ERROR_WANT_WRITE: return {Kind::kWantsWrite};
      case SSL_ERROR_ZERO_RETURN: return {Kind::kEnd};
      case SSL_ERROR_SYSCALL: error_ = error ? errno_text(error) : "closed"; break;
      default: error_ = verify_error(openssl_errors());
    }
    has_failed_ = true;
    return {Kind::kFailed};
  }

  std::string verify_error(std::string text) const {
    const long verified = SSL_get_verify_result(ssl_.get());
    return verified == X509_V_OK ? text : text + ": " + X509_verify_cert_error_string(verified);
  }

  const int fd_;
  const std::unique_ptr<SSL, SslDeleter> ssl_;
  bool is_through_ = false, has_failed_ = false;
  std::string error_;
};

constexpr unsigned char kAlpn[] = "\x08http/1.1";

int select_alpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                unsigned int in_size, void*) {
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_size, kAlpn, sizeof(kAlpn) - 1, in, in_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

class OpensslContext : public TlsContext {
 public:
  explicit OpensslContext(SslContextPtr context) : context_(std::move(context)) {}

  std::unique_ptr<Transport> accept(int fd) override {
    auto transport = std::make_unique<TlsTransport>(context_.get(), fd);
    SSL_set_accept_state(transport->ssl());
    return transport;
  }

  std::unique_ptr<Transport> connect(int fd, const std::string& host) override {
    auto transport = std::make_unique<TlsTransport>(context_.get(), fd);
    SSL* ssl = transport->ssl();
    SSL_set_connect_state(ssl);
    unsigned char address[16];
    if (inet_pton(AF_INET, host.c_str(), address) == 1 ||
        inet_pton(AF_INET6, host.c_str(), address) == 1) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    } else {
      SSL_set_tlsext_host_name(ssl, host.c_str());
      SSL_set1_host(ssl, host.c_str());
    }
    return transport;
  }

 private:
  const SslContextPtr context_;
};

Error tls_error(const std::string& what) {
  return {Code::kInvalidArgument, format(what, ": ", openssl_errors())};
}

SslContextPtr make_context(const SSL_METHOD* method) {
  SslContextPtr context(SSL_CTX_new(method));
  MR_CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  // A write goes on from wherever the bytes lie then; a connection that waits keeps no buffers.
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  return context;
}

Status load_ca(SSL_CTX* context, const std::string& file) {
  if (file.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) != 1) return tls_error("the system's CA files");
  } else if (SSL_CTX_load_verify_locations(context, file.c_str(), nullptr) != 1) {
    return tls_error("CA file " + file);
  }
  return {};
}

// No terminal is asked for the password of a key.
int no_password(char*, int, int, void*) { return -1; }

}  // namespace

std::string errno_text(int error) { return std::generic_category().message(error); }

std::unique_ptr<Transport> make_plain_transport(int fd) {
  return std::make_unique<PlainTransport>(fd);
}

Result<std::shared_ptr<TlsContext>> TlsContext::for_server(const TlsOptions& options) {
  ERR_clear_error();
  SslContextPtr context = make_context(TLS_server_method());
  SSL_CTX* c = context.get();
  SSL_CTX_set_default_passwd_cb(c, no_password);
  if (SSL_CTX_use_certificate_chain_file(c, options.certificate_file.c_str()) != 1) {
    return tls_error("certificate file " + options.certificate_file);
  }
  if (SSL_CTX_use_PrivateKey_file(c, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return tls_error("key file " + options.key_file);
  }
  if (SSL_CTX_check_private_key(c) != 1) {
    return tls_error(format("key file ", options.key_file, " does not belong to certificate file ",
                            options.certificate_file));
  }
  if (!options.ciphers.empty()) {
    // One list for both: names of TLS 1.3 begin with TLS_ and are set in their own way.
    std::string old_names, new_names;
    for (size_t at = 0; at <= options.ciphers.size();) {
      const size_t end = std::min(options.ciphers.find(':', at), options.ciphers.size());
      const std::string name = options.ciphers.substr(at, end - at);
      std::string& names = name.starts_with("TLS_") ? new_names : old_names;
      names += (names.empty() ? "" : ":") + name;
      at = end + 1;
    }
    if ((!old_names.empty() && SSL_CTX_set_cipher_list(c, old_names.c_str()) != 1) ||
        (!new_names.empty() && SSL_CTX_set_ciphersuites(c, new_names.c_str()) != 1)) {
      return tls_error("ciphers " + options.ciphers);
    }
  }
  if (options.requires_client_certificate) {
    RETURN_IF_ERROR(load_ca(c, options.ca_file));
    if (!options.ca_file.empty()) {
      SSL_CTX_set_client_CA_list(c, SSL_load_client_CA_file(options.ca_file.c_str()));
    }
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  static constexpr unsigned char kSessionContext[] = "millrace";
  SSL_CTX_set_session_id_context(c, kSessionContext, sizeof(kSessionContext) - 1);
  SSL_CTX_set_alpn_select_cb(c, select_alpn, nullptr);
  return std::shared_ptr<TlsContext>(std::make_shared<OpensslContext>(std::move(context)));
}

Result<std::shared_ptr<TlsContext>> TlsContext::for_client(const HttpClientOptions& options) {
  ERR_clear_error();
  SslContextPtr context = make_context(TLS_client_method());
  if (options.verifies_certificates) {
    RETURN_IF_ERROR(load_ca(context.get(), options.ca_file));
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  }
  SSL_CTX_set_alpn_protos(context.get(), kAlpn, sizeof(kAlpn) - 1);
  return std::shared_ptr<TlsContext>(std::make_shared<OpensslContext>(std::move(context)));
}

}  // namespace millrace::net
