#pragma once

// For tests: certificates, made on the spot.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

namespace millrace::net {

struct Certificate {
  std::string certificate_file, key_file;
  std::shared_ptr<X509> x509;
  std::shared_ptr<EVP_PKEY> key;
};

// Writes PREFIX.crt and PREFIX.key, signed by `issuer` or by itself. It holds for a year, for
// localhost and 127.0.0.1.
inline Certificate make_certificate(const std::string& prefix, const std::string& name,
                                    const Certificate* issuer = nullptr) {
  Certificate made;
  made.key = std::shared_ptr<EVP_PKEY>(EVP_EC_gen("P-256"), EVP_PKEY_free);
  made.x509 = std::shared_ptr<X509>(X509_new(), X509_free);
  X509* const x509 = made.x509.get();
  X509_set_version(x509, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), issuer ? 2 : 1);
  X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x509), 365 * 86400);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  const Certificate& signer = issuer ? *issuer : made;
  X509_set_issuer_name(x509, X509_get_subject_name(signer.x509.get()));
  X509_set_pubkey(x509, made.key.get());
  for (const auto& [id, value] : {std::pair<int, const char*>{NID_basic_constraints,
                                                              issuer ? "CA:FALSE" : "CA:TRUE"},
                                  {NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1"}}) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
    EXPECT_NE(extension, nullptr);
    X509_add_ext(x509, extension, -1);
    X509_EXTENSION_free(extension);
  }
  EXPECT_GT(X509_sign(x509, signer.key.get(), EVP_sha256()), 0);
  made.certificate_file = prefix + ".crt";
  made.key_file = prefix + ".key";
  FILE* file = std::fopen(made.certificate_file.c_str(), "w");
  EXPECT_EQ(PEM_write_X509(file, x509), 1);
  std::fclose(file);
  file = std::fopen(made.key_file.c_str(), "w");
  EXPECT_EQ(PEM_write_PrivateKey(file, made.key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
  std::fclose(file);
  return made;
}

}  // namespace millrace::net
