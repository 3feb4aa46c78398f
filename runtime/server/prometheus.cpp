#include "runtime/server/prometheus.h"

#include <cstdio>

namespace tandem {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

class Writer {
 public:
  explicit Writer(const std::string& model_name) : label_("model_name=\"" + escaped(model_name) + "\"") {}

  void header(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void sample(const std::string& name, double value, const std::string& more_labels = "") {
    text_ += name + "{" + label_ + (more_labels.empty() ? "" : "," + more_labels) + "} " + number(value) + "\n";
  }
  void gauge(const char* name, const char* help, double value) {
    header(name, "gauge", help);
    sample(name, value);
  }
  void counter(const char* name, const char* help, int64_t value) {
    header(name, "counter", help);
    sample(name, static_cast<double>(value));
  }
  void histogram(const char* name, const char* help, const Histogram& histogram) {
    header(name, "histogram", help);
    const std::string bucket = std::string(name) + "_bucket";
    for (size_t i = 0; i < Histogram::kBounds.size(); ++i)
      sample(bucket, static_cast<double>(histogram.cumulative(i)), "le=\"" + number(Histogram::kBounds[i]) + "\"");
    sample(bucket, static_cast<double>(histogram.count()), "le=\"+Inf\"");
    sample(std::string(name) + "_sum", histogram.sum_seconds());
    sample(std::string(name) + "_count", static_cast<double>(histogram.count()));
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string label_;
  std::string text_;
};

}  // namespace

std::string prometheus_text(const std::string& model_name, const EngineStatus& status, const EngineMetrics& metrics,
                            int64_t context, const std::vector<RankStatus>& ranks) {
  Writer w(model_name);
  w.gauge("vllm:num_requests_running", "Requests being answered.", static_cast<double>(status.running));
  w.gauge("vllm:num_requests_waiting", "Requests waiting.", static_cast<double>(status.waiting));
  w.gauge("vllm:kv_cache_usage_perc", "Share of the context in use, 0 to 1.",
          static_cast<double>(status.tokens_in_sequence) / static_cast<double>(context));
  w.counter("vllm:prompt_tokens_total", "Prompt tokens read.", metrics.prompt_tokens);
  w.counter("vllm:generation_tokens_total", "Tokens generated.", metrics.generation_tokens);
  w.header("vllm:request_success_total", "counter", "Answers by the way they ended.");
  w.sample("vllm:request_success_total", static_cast<double>(metrics.finished_stop), "finished_reason=\"stop\"");
  w.sample("vllm:request_success_total", static_cast<double>(metrics.finished_length), "finished_reason=\"length\"");
  w.sample("vllm:request_success_total", static_cast<double>(metrics.cancelled), "finished_reason=\"abort\"");
  w.counter("tandem_requests_failed_total", "Answers that ended with an error.", metrics.failed);
  w.histogram("vllm:request_queue_time_seconds", "Time a request waited.", metrics.queue_seconds);
  w.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.",
              metrics.time_to_first_token_seconds);
  w.histogram("vllm:inter_token_latency_seconds", "Between two tokens.", metrics.inter_token_seconds);
  w.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", metrics.request_seconds);
  w.header("tandem_rank_alive", "gauge", "1 while the rank is heard of.");
  for (const RankStatus& rank : ranks)
    w.sample("tandem_rank_alive", rank.alive ? 1 : 0, "rank=\"" + std::to_string(rank.rank) + "\"");
  w.header("tandem_rank_bytes_exchanged_total", "counter", "Bytes the rank sent and received in exchanges.");
  for (const RankStatus& rank : ranks)
    w.sample("tandem_rank_bytes_exchanged_total", static_cast<double>(rank.bytes_exchanged),
             "rank=\"" + std::to_string(rank.rank) + "\"");
  return w.take();
}

}  // namespace tandem
