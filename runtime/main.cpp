// tandem-runtime: one rank of a model. Flags -> command -> exit code; the one place an Error is printed.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "runtime/cli/bench.h"
#include "runtime/cli/interrupt.h"
#include "runtime/cli/model_flags.h"
#include "runtime/cli/score.h"
#include "runtime/cli/serve_command.h"
#include "runtime/cli/version.h"
#include "runtime/common/error.h"
#include "runtime/common/ling_config.h"
#include "runtime/common/log.h"

namespace tandem {
namespace {

struct ScoreFlags {
  ModelFlags model;
  std::string tokens;
  ScoreOptions options;
  std::string out;
};

struct BenchFlags {
  ModelFlags model;
  BenchOptions options;
  bool json = false;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

void add_score(CLI::App& app, ScoreFlags& flags) {
  CLI::App* command = app.add_subcommand("score", "log-probabilities of given tokens, for comparing packs");
  add_model_flags(*command, flags.model);
  command->add_option("--tokens", flags.tokens, "one {\"tokens\": [...]} a line (rank 0)");
  command->add_option("--out", flags.out, "safetensors file to write (rank 0)");
  command->add_flag("--logits", flags.options.logits, "write all logits too");
  command->add_flag("--mtp", flags.options.mtp, "write the MTP layer's logits too");
}

void add_bench(CLI::App& app, BenchFlags& flags) {
  CLI::App* command = app.add_subcommand("bench", "speed of prefill and decode, without HTTP");
  add_model_flags(*command, flags.model);
  command->add_option("--prompt", flags.options.prompt_tokens, "tokens of the prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--generate", flags.options.generated_tokens, "tokens to generate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--verify-rows", flags.options.verified_rows, "rows of the passes that verify drafts")
      ->check(CLI::Range(int64_t{2}, kMaxDecodeRows))
      ->capture_default_str();
  command->add_option("--repeat", flags.options.repetitions, "repetitions; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", flags.json, "print one JSON object");
}

void run_score_command(const ScoreFlags& flags) {
  const ModelFlags& model_flags = flags.model;
  const LingConfig config = read_ling_config(model_flags.pack);
  ModelOptions options = model_options(model_flags, config.max_position_embeddings);
  options.with_mtp = flags.options.mtp;
  std::vector<std::vector<int32_t>> sequences;
  if (model_flags.rank == 0) {
    for (const auto& [value, flag] : {std::pair(&flags.tokens, "--tokens"), std::pair(&flags.out, "--out")}) {
      if (value->empty()) throw Error(ErrorKind::usage, std::string(flag) + " is missing", "score", "name a file");
    }
    sequences = read_token_lines(flags.tokens, config.vocab_size, config.max_position_embeddings);
  }
  ScoreOptions score_options = flags.options;
  score_options.out = flags.out;
  score_options.between_chunks = throw_if_interrupted;
  score_options.progress = [](int64_t done, int64_t of) { log_info("scored", {{"sequences", done}, {"of", of}}); };
  const std::unique_ptr<Communicator> communicator =
      join_ranks(model_flags, {{"command", "score"}, {"mtp", flags.options.mtp ? "on" : "off"}}, interrupted);
  const std::unique_ptr<Model> model = Model::load(options, *communicator);
  const ScoreSummary summary = score(*model, std::move(sequences), score_options);
  if (model_flags.rank != 0) return;
  char text[160];
  std::snprintf(text, sizeof text, "%lld sequences, %lld tokens predicted, mean negative log-likelihood %.4f\n",
                static_cast<long long>(summary.sequences), static_cast<long long>(summary.predicted_tokens),
                summary.negative_log_likelihood);
  print(text);
}

void run_bench_command(const BenchFlags& flags) {
  BenchOptions options = flags.options;
  options.between_passes = throw_if_interrupted;
  // A prompt, its continuation, and the kept row of each verified pass.
  const int64_t context = options.prompt_tokens + 2 * options.generated_tokens + kMaxDecodeRows;
  const std::unique_ptr<Communicator> communicator =
      join_ranks(flags.model, {{"command", "bench"}, {"context", std::to_string(context)}}, interrupted);
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Model> model = Model::load(model_options(flags.model, context), *communicator);
  const std::chrono::duration<double> load_time = std::chrono::steady_clock::now() - start;
  BenchResult result = run_bench(*model, options);
  result.load_seconds = load_time.count();
  if (flags.model.rank == 0) print(bench_text(options, result, flags.json));
}

std::map<std::string, std::vector<std::string>> options_of_commands(const CLI::App& app) {
  std::map<std::string, std::vector<std::string>> options;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_name() != "--help") options[command->get_name()].push_back(option->get_name());
    }
  }
  return options;
}

int run(int argc, char** argv) {
  CLI::App app{"One rank of a model: serves it, scores tokens, measures its speed.", "tandem-runtime"};
  app.require_subcommand(1);
  app.set_help_flag("--help", "print this and exit");
  bool quiet = false;
  app.add_flag("--quiet", quiet, "log warnings and errors only");

  ScoreFlags score_flags;
  BenchFlags bench_flags;
  ServeFlags serve_flags;
  bool version_json = false;
  add_serve_flags(*app.add_subcommand("serve", "answers OpenAI's HTTP API (rank 0), or computes along"), serve_flags);
  add_score(app, score_flags);
  add_bench(app, bench_flags);
  CLI::App* version_command = app.add_subcommand("version", "what this build is and can do");
  version_command->add_flag("--json", version_json, "print one JSON object");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : exit_code(ErrorKind::usage);
  }
  catch_interrupts();
  const auto start_logging = [&](const ModelFlags& flags) {
    init_logging(quiet ? LogLevel::warn : LogLevel::info, "", flags.world_size > 1 ? flags.rank : -1);
  };
  if (app.got_subcommand("serve")) {
    start_logging(serve_flags.model);
    run_serve(serve_flags);
  } else if (app.got_subcommand("score")) {
    start_logging(score_flags.model);
    run_score_command(score_flags);
  } else if (app.got_subcommand("bench")) {
    start_logging(bench_flags.model);
    run_bench_command(bench_flags);
  } else {
    print(version_text(options_of_commands(app), version_json));
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    return tandem::run(argc, argv);
  } catch (const tandem::Error& error) {
    std::fputs(error.report().c_str(), stderr);
    return tandem::exit_code(error.kind());
  } catch (const std::exception& error) {
    std::fputs(tandem::Error(tandem::ErrorKind::internal, error.what()).report().c_str(), stderr);
    return tandem::exit_code(tandem::ErrorKind::internal);
  }
}
