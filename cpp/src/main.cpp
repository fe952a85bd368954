// SPDX-License-Identifier: Apache-2.0
// qeff-run: a package and a prompt in, the answer out as it grows.
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "decoder.hpp"
#include "sampling.hpp"
#include "tokenizer.hpp"

namespace {

const char* const kUsage = R"(usage: qeff-run PACKAGE (--prompt TEXT | --prompt-ids N,N,...) [options]

Runs a package of target ort on the CPU.

  --prompt TEXT             what to complete
  --prompt-ids N,N,...      the same as token ids; no tokenizer is needed then
  --chat                    apply the chat template to the prompt
  --generation-len N        tokens to generate at most (default: as many as the context holds)
  --ignore-eos              do not end at the model's EOS tokens
  --temperature X           draw at random; 0, the default, takes the likeliest token each time
  --top-k N, --top-p X, --min-p X, --repetition-penalty X, --seed N
  --threads N               CPU threads of one operator (default: physical cores)
  --json                    print token ids, text and speed as JSON at the end
)";

struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// argv, read: the package, and the value of each option; of a switch "1".
struct Arguments {
  std::string package;
  std::map<std::string, std::string> given;

  Arguments(int argc, char** argv) {
    const std::map<std::string, bool> known{
        {"--prompt", true},  {"--prompt-ids", true}, {"--chat", false},  {"--generation-len", true},
        {"--top-k", true},   {"--top-p", true},      {"--min-p", true},  {"--repetition-penalty", true},
        {"--seed", true},    {"--threads", true},    {"--json", false},  {"--temperature", true},
        {"--ignore-eos", false}};
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const auto option = known.find(word);
      if (option == known.end()) {
        if (word.rfind("--", 0) == 0 || !package.empty()) throw Usage("unrecognized argument: " + word);
        package = word;
      } else if (option->second && ++i == argc) {
        throw Usage("expected a value after " + word);
      } else {
        given[word] = option->second ? argv[i] : "1";
      }
    }
    if (package.empty()) throw Usage("expected a package");
    if (has("--prompt") == has("--prompt-ids")) throw Usage("expected one of --prompt and --prompt-ids");
  }

  bool has(const std::string& name) const { return given.count(name) > 0; }

  template <class T>
  T number(const std::string& name, T otherwise) const {
    if (!has(name)) return otherwise;
    std::istringstream text(given.at(name));
    T value;
    if (!(text >> value) || !text.eof()) throw Usage("expected a number after " + name + ", not " + given.at(name));
    return value;
  }
};

std::vector<int64_t> ids_of(const std::string& text) {
  std::vector<int64_t> ids;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    try {
      ids.push_back(std::stoll(part));
    } catch (const std::logic_error&) {
      throw Usage("expected token ids after --prompt-ids, not " + part);
    }
  }
  return ids;
}

int run(const Arguments& arguments) {
  const auto package = qeff::Package::open(arguments.package);
  std::optional<qeff::Tokenizer> tokenizer;
  std::vector<int64_t> prompt;
  if (arguments.has("--prompt")) {
    tokenizer.emplace(package.folder);
    const auto& text = arguments.given.at("--prompt");
    const bool chat = arguments.has("--chat");
    prompt = tokenizer->encode(chat ? tokenizer->chat(text) : text, !chat);
  } else {
    prompt = ids_of(arguments.given.at("--prompt-ids"));
  }
  for (int64_t token : prompt)
    if (token < 0 || token >= package.vocab_size)
      throw qeff::Error("Cannot read token " + std::to_string(token) + "; expected 0 to " +
                        std::to_string(package.vocab_size - 1) + ". Give ids of this model.");
  qeff::Sampling sampling;
  sampling.temperature = arguments.number("--temperature", sampling.temperature);
  sampling.top_k = arguments.number("--top-k", sampling.top_k);
  sampling.top_p = arguments.number("--top-p", sampling.top_p);
  sampling.min_p = arguments.number("--min-p", sampling.min_p);
  sampling.repetition_penalty = arguments.number("--repetition-penalty", sampling.repetition_penalty);
  sampling.seed = arguments.has("--seed") ? arguments.number<uint64_t>("--seed", 0) : std::random_device{}();
  qeff::Sampler sampler(sampling, prompt);
  qeff::Decoder decoder(package, arguments.number("--threads", 0));

  const bool json = arguments.has("--json"), ignore_eos = arguments.has("--ignore-eos");
  const auto room = package.ctx_len - static_cast<int64_t>(prompt.size());
  const auto wanted = std::min(arguments.number<int64_t>("--generation-len", room), room);
  std::vector<int64_t> answer;
  std::string text;
  const auto show = [&](const std::string& more) {
    text += more;
    if (!json) std::cout << more << std::flush;
  };
  const auto begun = Clock::now();
  const float* logits = decoder.read(prompt.data(), prompt.size());
  double first = 0;
  while (static_cast<int64_t>(answer.size()) < wanted) {
    const int64_t token = sampler.next(logits, package.vocab_size);
    if (answer.empty()) first = since(begun);
    answer.push_back(token);
    if (!ignore_eos && package.eos.count(token)) break;
    if (tokenizer) show(tokenizer->next(token));
    else if (!json) show(std::to_string(token) + " ");
    if (static_cast<int64_t>(answer.size()) < wanted) logits = decoder.read(&token, 1);
  }
  const double total = since(begun);
  const double speed = answer.size() > 1 ? static_cast<double>(answer.size() - 1) / (total - first) : 0;
  if (json) {
    const nlohmann::json found{{"prompt_ids", prompt},
                               {"token_ids", answer},
                               {"text", text},
                               {"ttft_s", first},
                               {"decode_tokens_per_s", speed},
                               {"total_s", total},
                               {"graph_s", decoder.graph_seconds()}};
    std::cout << found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  } else {
    std::cout << '\n';
    std::cerr << prompt.size() << " prompt tokens, first answer after " << first << " s; " << answer.size()
              << " tokens at " << speed << "/s\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1 && (argv[1] == std::string("--help") || argv[1] == std::string("-h"))) {
      std::cout << kUsage;
      return 0;
    }
    return run(Arguments(argc, argv));
  } catch (const Usage& error) {
    std::cerr << "qeff-run: " << error.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "qeff-run: " << error.what() << '\n';
    return 1;
  }
}
