#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/fakes/scripted_server.h"

namespace tandem::testing {

/// A hub with one repository, "org/pack", that does everything right except what `fault` says.
class FakeHub {
 public:
  /// Gets each request first; what it returns is the answer.
  using Fault = std::function<std::optional<WireReply>(const WireRequest&)>;

  explicit FakeHub(std::map<std::string, std::string> files, Fault fault = {});

  std::string endpoint() const { return server_->endpoint(); }
  std::string commit() const;
  std::vector<WireRequest> requests() const { return server_->requests(); }
  /// Requests for contents: their targets hold "/resolve/".
  std::vector<WireRequest> content_requests() const;
  /// A new commit on main; the old one is gone, as after a force push.
  void replace_files(std::map<std::string, std::string> files);

  /// The right answer to a request for a content.
  std::string content_answer(const WireRequest& request) const;

 private:
  WireReply answer(const WireRequest& request) const;

  mutable std::mutex mutex_;
  std::map<std::string, std::string> files_;
  const Fault fault_;
  std::unique_ptr<ScriptedServer> server_;
};

}  // namespace tandem::testing
