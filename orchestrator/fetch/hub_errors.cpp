// What an answer of the hub means for people: one sentence and one way out each.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "orchestrator/fetch/hub_transport.h"
#include "runtime/common/units.h"

namespace tandem {
namespace {

/// The hub's own explanation: a header, or "error" in a JSON body. "" when there is none.
std::string hub_message(const HubAnswer& answer) {
  std::string text = answer.response.header("X-Error-Message");
  if (text.empty()) {
    const auto body = nlohmann::json::parse(answer.error_body, nullptr, false);
    if (body.is_object() && body.contains("error") && body["error"].is_string()) text = body["error"];
  }
  return printable(text, 300);
}

std::string host_of(const HubAnswer& answer) {
  return answer.url.origin();
}

std::string seconds_text(std::chrono::milliseconds time) {
  return format_duration(time);
}

}  // namespace

bool is_temporary(const HubAnswer& answer) {
  switch (answer.response.failure) {
    case HttpFailure::none:
      break;
    case HttpFailure::tls:
    case HttpFailure::cancelled:
      return false;
    case HttpFailure::stopped:
      break;  // by its status, below
    default:
      return true;
  }
  const int status = answer.response.status;
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504 || (status >= 520 && status <= 529);
}

std::string describe_failure(const HubAnswer& answer, const RetryPolicy& policy) {
  const std::string host = host_of(answer);
  switch (answer.response.failure) {
    case HttpFailure::dns:
      return "the name " + printable(answer.url.host, 200) + " has no address (" +
             printable(answer.response.detail, 100) + ")";
    case HttpFailure::connect:
      return "no connection to " + host;
    case HttpFailure::tls:
      return "no secure connection to " + host +
             (answer.response.detail.empty() ? "" : " (" + printable(answer.response.detail, 100) + ")");
    case HttpFailure::stalled:
      return host + " sent less than " + format_rate(static_cast<double>(policy.floor_bytes_per_second)) + " for " +
             seconds_text(policy.stall_timeout);
    case HttpFailure::closed:
      return host + " closed the connection before the answer was complete";
    case HttpFailure::cancelled:
      return "interrupted";
    default:
      break;
  }
  const std::string message = hub_message(answer);
  return host + " answered " + std::to_string(answer.response.status) + (message.empty() ? "" : " (" + message + ")");
}

Error hub_error(const HubAnswer& answer, const HubOptions& hub, const HubSubject& subject, int tries) {
  const std::string where = answer.url.display();
  const std::string repo = printable(subject.repo, 200);
  const std::string page = repo_page(hub, subject.repo);
  const auto error = [&](std::string what, std::string fix) {
    return Error(ErrorKind::fetch, std::move(what), where, std::move(fix));
  };
  const std::string after = tries > 1 ? ", " + std::to_string(tries) + " times in a row" : "";

  switch (answer.response.failure) {
    case HttpFailure::cancelled:
      return Error(ErrorKind::interrupted, "fetch was interrupted", where, "run it again: it continues where it was");
    case HttpFailure::dns:
      return error(describe_failure(answer, hub.retry) + after,
                   "check the spelling of HF_ENDPOINT and this machine's name server");
    case HttpFailure::connect:
      return error(
          describe_failure(answer, hub.retry) + after,
          "check that the server runs and that no firewall is between; a mirror is started with `tandem mirror`");
    case HttpFailure::tls:
      return error(
          describe_failure(answer, hub.retry),
          "check this machine's clock and certificates (package ca-certificates; SSL_CERT_FILE for a proxy's own)");
    case HttpFailure::stalled:
      return error(describe_failure(answer, hub.retry) + after, "run it again later: it continues where it was");
    case HttpFailure::closed:
      return error(describe_failure(answer, hub.retry) + after, "run it again: it continues where it was");
    default:
      break;
  }

  const std::string code = answer.response.header("X-Error-Code");
  const std::string said = hub_message(answer).empty() ? "" : "; it says: " + hub_message(answer);
  switch (answer.response.status) {
    case 401:
      if (answer.token_sent) {
        return error("the hub does not accept the token for " + repo + " (401)" + said,
                     "make a new token that may read it, at " + hub.endpoint + "/settings/tokens, and set HF_TOKEN");
      }
      if (!hub.token.empty()) {
        return error("the hub wants a token for " + repo + " (401), and ours was not sent: the address is plain http",
                     "use an https address in HF_ENDPOINT");
      }
      return error(repo + " is private, gated, or does not exist under this name: the hub wants a token (401)" + said,
                   "check the name; then set HF_TOKEN to a token of an account that may read " + page);
    case 403: {
      std::string lower = hub_message(answer);
      std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
      if (code == "GatedRepo" || lower.find("gated") != std::string::npos ||
          lower.find("authorized list") != std::string::npos || lower.find("awaiting") != std::string::npos) {
        return error(repo + " is gated and this account has not been let in yet (403)" + said,
                     "open " + page + ", accept its terms with the account of HF_TOKEN, then run it again");
      }
      if (answer.token_sent) {
        return error("the token may not read " + repo + " (403)" + said,
                     "give it read access (a fine-grained token needs it for public gated repositories too), at " +
                         hub.endpoint + "/settings/tokens");
      }
      return error("the server refuses to give out " + repo + " (403)" + said,
                   "set HF_TOKEN to a token that may read " + page);
    }
    case 404:
      if (!subject.path.empty() && code != "RevisionNotFound" && code != "RepoNotFound") {
        return error("no file " + printable(subject.path, 200) + " in " + repo + " at " +
                         printable(subject.revision, 80) + " (404)" + said,
                     "check the names in the recipe or lock file against " + page);
      }
      if (code == "RevisionNotFound" && is_commit(subject.revision)) {
        return error("commit " + subject.revision + " of " + repo + " no longer exists on the server (404)",
                     "pin a commit that " + page + " lists; a cache or mirror that still has it can serve it");
      }
      if (code == "RevisionNotFound") {
        return error("no revision \"" + printable(subject.revision, 80) + "\" in " + repo + " (404)",
                     "use a branch, tag or commit that " + page + " lists");
      }
      return error(
          "no repository " + repo + ", or no revision \"" + printable(subject.revision, 80) + "\" in it (404)" + said,
          "check both names against " + page + "; a private one needs HF_TOKEN");
    case 416:
      return error("the server's file " + printable(subject.path, 200) + " is shorter than its list says (416)",
                   "run it again; if it stays so, the server's copy is damaged: use another one in HF_ENDPOINT");
    case 429:
      return error("the server allows no more requests for now (429)" + after + said,
                   "wait some minutes and run it again: it continues where it was" +
                       std::string(hub.token.empty() ? "; with HF_TOKEN set the limits are higher" : ""));
    default:
      break;
  }
  if (answer.response.status >= 500) {
    return error("the server has a problem of its own (" + std::to_string(answer.response.status) + ")" + after + said,
                 "run it again later: it continues where it was");
  }
  return error("unexpected answer " + std::to_string(answer.response.status) + said,
               "check that HF_ENDPOINT is a Hugging Face hub or a `tandem mirror`");
}

}  // namespace tandem
