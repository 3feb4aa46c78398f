// The library's own header, because only it brings a TLS server.
#include <httplib.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <memory>
#include <thread>

#include "orchestrator/fetch/hub.h"
#include "tests/catch.h"
#include "tests/orchestrator/fetch/fixture.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

/// A certificate for localhost that nobody else has signed.
struct SelfSigned {
  SelfSigned() : key(EVP_RSA_gen(2048), EVP_PKEY_free), certificate(X509_new(), X509_free) {
    X509_set_version(certificate.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1,
                               0);
    X509_set_issuer_name(certificate.get(), name);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost");
    X509_add_ext(certificate.get(), extension, -1);
    X509_EXTENSION_free(extension);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
  }
  void write_to(const fs::path& path) const {
    std::FILE* file = std::fopen(path.c_str(), "w");
    PEM_write_X509(file, certificate.get());
    std::fclose(file);
  }

  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key;
  std::unique_ptr<X509, decltype(&X509_free)> certificate;
};

/// A hub over TLS that answers model info and redirects its file lists to plain http.
class TlsHub {
 public:
  explicit TlsHub(const SelfSigned& identity) : server_(identity.certificate.get(), identity.key.get()) {
    server_.Get("/api/models/org/pack/revision/main",
                [this](const httplib::Request& request, httplib::Response& response) {
                  token_ = request.get_header_value("Authorization");
                  response.set_content("{\"sha\": \"" + std::string(40, 'a') + "\"}", "application/json");
                });
    server_.Get("/api/models/org/pack/tree/.*", [](const httplib::Request&, httplib::Response& response) {
      response.set_redirect("http://127.0.0.1:9/list");
    });
    port_ = server_.bind_to_any_port("localhost");
    thread_ = std::jthread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~TlsHub() { server_.stop(); }

  HubOptions options() const {
    HubOptions options = test_options("https://localhost:" + std::to_string(port_), "").hub;
    options.retry.stall_timeout = std::chrono::seconds(20);
    options.token = "hf_secret";
    return options;
  }
  const std::string& token() const { return token_; }

 private:
  httplib::SSLServer server_;
  int port_ = 0;
  std::string token_;
  std::jthread thread_;
};

/// Sets an environment variable for a scope.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a certificate that nobody vouches for is refused before the token is sent", "[fetch]") {
  const SelfSigned identity;
  TlsHub hub(identity);
  HubClient client(hub.options());
  try {
    client.resolve_commit("org/pack", "main");
    FAIL("it was accepted");
  } catch (const Error& error) {
    CHECK_THAT(error.what(), ContainsSubstring("no secure connection to https://localhost"));
    CHECK_THAT(error.fix(), ContainsSubstring("SSL_CERT_FILE"));
  }
  CHECK(hub.token().empty());
}

TEST_CASE("a certificate the user trusts works, and no redirect leads out of TLS", "[fetch]") {
  TemporaryFolder folder;
  const SelfSigned identity;
  identity.write_to(folder / "trusted.pem");
  const Environment trust("SSL_CERT_FILE", folder / "trusted.pem");
  TlsHub hub(identity);
  HubClient client(hub.options());
  CHECK(client.resolve_commit("org/pack", "main") == std::string(40, 'a'));
  CHECK(hub.token() == "Bearer hf_secret");
  CHECK_THROWS_WITH(client.list_files("org/pack", "main"), ContainsSubstring("from https to plain http"));
}
