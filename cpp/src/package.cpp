// SPDX-License-Identifier: Apache-2.0
#include "package.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace qeff {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kMostNested = 100;

Json read(const fs::path& path) {
  std::ifstream file(path);
  if (!file)
    throw Error("Cannot read " + path.string() + ": there is no such file. Expected the folder of a package. Give the "
                "path that `qeff-zoo build` printed.");
  check_depth(path);
  return Json::parse(file);
}

int64_t number(const Json& symbols, const char* name) { return std::stoll(symbols.at(name).get<std::string>()); }

std::unordered_set<int64_t> eos_of(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!fs::exists(folder / name)) continue;
    const Json config = read(folder / name);
    const auto found = config.find("eos_token_id");
    if (found == config.end() || found->is_null()) continue;
    if (found->is_number()) return {found->get<int64_t>()};
    return found->get<std::unordered_set<int64_t>>();
  }
  return {};
}

void refuse(const fs::path& folder, const std::string& is, const std::string& expected) {
  throw Error("Cannot run " + folder.string() + ": it is " + is + "; expected " + expected +
              ". Build one with `qeff-zoo build MODEL`, or run this one with `qeff-zoo run`.");
}

// Reads sizes from the specializations; the last one decodes, the first one prefills where there are two kinds.
void read_sizes(const Json& program, Package& package) {
  std::set<int64_t> contexts;
  for (const auto& entry : program.at("specializations")) {
    const auto& symbols = entry.at("symbols");
    const bool prefills = entry.at("name").get<std::string>().rfind("Prefill", 0) == 0;
    if (prefills || package.prefill_seq_len == 0) package.prefill_seq_len = number(symbols, "seq_len");
    package.ctx_len = number(symbols, "ctx_len");
    if (symbols.contains("comp_ctx_lengths")) contexts.insert(number(symbols, "comp_ctx_lengths"));
  }
  package.contexts.assign(contexts.begin(), contexts.end());
}

void read_states(const Json& program, Package& package) {
  for (const auto& one : program.at("states")) {
    State state{one.at("name"), one.at("dtype"), {}};
    for (const auto& axis : one.at("axes")) {
      const bool symbol = axis.is_string();
      state.shape.push_back(!symbol ? axis.get<int64_t>() : axis == "ctx_len" ? package.ctx_len : 1);
    }
    package.states.push_back(std::move(state));
  }
}

}  // namespace

void check_depth(const fs::path& path) {
  std::ifstream file(path);
  int depth = 0;
  bool in_text = false;
  for (auto at = std::istreambuf_iterator<char>(file); at != std::istreambuf_iterator<char>(); ++at) {
    if (*at == '"') in_text = !in_text;
    else if (in_text && *at == '\\' && ++at == std::istreambuf_iterator<char>()) break;
    if (in_text) continue;
    if (*at == '[' || *at == '{') ++depth;
    if (*at == ']' || *at == '}') --depth;
    if (depth > kMostNested)
      throw Error("Cannot read " + path.string() + ": its lists and objects nest deeper than " +
                  std::to_string(kMostNested) + ". Expected a file of a package. Build or pull the package again.");
  }
}

Package Package::open(const fs::path& folder) {
  Package package;
  package.folder = folder;
  try {
    const Json manifest = read(folder / "manifest.json");
    const auto target = manifest.at("target").at("name").get<std::string>();
    if (target != "ort" && target != "openvino") refuse(folder, "for target " + target, "target ort or openvino");
    if (manifest.at("task") != "text-generation")
      refuse(folder, "for " + manifest["task"].get<std::string>(), "text-generation");
    if (manifest.at("programs").size() != 1) refuse(folder, "of several programs", "one");
    const auto& program = manifest["programs"][0];
    package.graph = (folder / program.at("path").get<std::string>()).lexically_normal();
    if (package.graph.parent_path() != folder.lexically_normal() && package.graph.parent_path() != folder)
      refuse(folder, "with a graph elsewhere", "a graph in its folder");
    const std::set<std::string> filled{"input_ids", "position_ids", "comp_ctx_lengths", "num_logits_to_keep"};
    for (const auto& input : program.at("inputs")) {
      package.inputs.push_back(input.at("name"));
      if (!filled.count(package.inputs.back())) refuse(folder, "with an input " + package.inputs.back(), "tokens alone");
    }
    package.vocab_size = program.at("outputs").at(0).at("shape").at(2);
    read_sizes(program, package);
    read_states(program, package);
    package.eos = eos_of(folder);
  } catch (const Json::exception& error) {
    throw Error("Cannot read the package " + folder.string() + ": " + error.what() +
                ". Expected one as it was built. Run `qeff-zoo inspect --verify` on it.");
  }
  return package;
}

}  // namespace qeff
