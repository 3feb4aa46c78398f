#include "orchestrator/cli/stage_display.h"

#include "runtime/common/error.h"
#include "runtime/common/units.h"

namespace tandem::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kLiveInterval = 100ms;
constexpr auto kPlainInterval = 5s;
constexpr const char* kClearLine = "\r\x1b[K";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kReset = "\x1b[0m";

/// The first `columns` characters; a live line that wraps could not be rewritten.
std::string cut(const std::string& text, size_t columns) {
  size_t shown = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts_character && shown++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

StageDisplay::StageDisplay(std::ostream& out, DisplayOptions options) : out_(out), options_(options) {}

StageDisplay::~StageDisplay() {
  clear_line();
}

std::string StageDisplay::head() const {
  std::string name(launch::stage_name(stage_));
  name.resize(8, ' ');
  return "[" + std::to_string(static_cast<int>(stage_) + 1) + "/" + std::to_string(launch::kNumStages) + "] " + name;
}

void StageDisplay::clear_line() {
  if (line_open_) out_ << kClearLine << std::flush;
  line_open_ = false;
}

void StageDisplay::begin(launch::Stage stage) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  stage_began_ = Clock::now();
  last_shown_ = stage_began_ - kPlainInterval;
  last_text_.clear();
  first_bytes_ = -1;
}

std::string StageDisplay::with_rate(const std::string& text, int64_t bytes_done, int64_t bytes_total) {
  // The downloader knows its own rate, over the network alone; here it is work on this machine's disk.
  if (bytes_total <= 0 || stage_ == launch::Stage::fetch) return text;
  if (first_bytes_ < 0) {
    first_bytes_ = bytes_done;
    first_bytes_at_ = Clock::now();
    return text;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - first_bytes_at_).count();
  const double rate = static_cast<double>(bytes_done - first_bytes_) / std::max(seconds, 1e-3);
  if (rate <= 0) return text;
  const std::chrono::duration<double> left(static_cast<double>(bytes_total - bytes_done) / rate);
  return text + "   " + format_rate(rate) + "   " + format_duration(std::chrono::ceil<std::chrono::seconds>(left)) +
         " left";
}

void StageDisplay::progress(const std::string& text, int64_t bytes_done, int64_t bytes_total) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const std::string shown = with_rate(printable(text, 300), bytes_done, bytes_total);
  if (options_.quiet || shown == last_text_) return;
  if (now - last_shown_ < (options_.live ? Clock::duration(kLiveInterval) : Clock::duration(kPlainInterval))) return;
  last_shown_ = now;
  last_text_ = shown;
  if (options_.live) {
    out_ << kClearLine << cut(head() + " " + shown, static_cast<size_t>(std::max(options_.columns - 1, 20)))
         << std::flush;
    line_open_ = true;
  } else {
    out_ << head() << " " << shown << std::endl;
  }
}

void StageDisplay::end(const std::string& summary, bool skipped) {
  const std::lock_guard lock(mutex_);
  clear_line();
  if (options_.quiet) return;
  std::string text = printable(summary, 2000);
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 17) text.insert(at + 1, 15, ' ');
  const std::string time = format_duration(std::chrono::round<std::chrono::milliseconds>(Clock::now() - stage_began_));
  if (options_.color) out_ << (skipped ? kDim : kGreen);
  out_ << head();
  if (options_.color) out_ << (skipped ? "" : kReset);
  out_ << " " << text << "  (" << (skipped ? "skipped" : time) << ")";
  if (options_.color) out_ << kReset;
  out_ << std::endl;
}

void StageDisplay::planned(const Plan& plan) {
  const std::lock_guard lock(mutex_);
  clear_line();
  if (!options_.quiet && options_.show_plan) out_ << "\n" << plan_text(plan) << "\n" << std::flush;
}

}  // namespace tandem::cli
