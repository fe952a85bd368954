// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "package.hpp"

// Of onnxruntime-genai's C API, what is used here: its wheel has the library, and no header.
extern "C" {
struct OgaConfig;
struct OgaResult;
struct OgaSequences;
const char* OgaResultGetError(const OgaResult*);
void OgaDestroyResult(OgaResult*);
OgaResult* OgaCreateConfig(const char* folder, OgaConfig** out);
void OgaDestroyConfig(OgaConfig*);
OgaResult* OgaCreateTokenizerFromConfig(const OgaConfig*, OgaTokenizer** out);
void OgaDestroyTokenizer(OgaTokenizer*);
OgaResult* OgaCreateSequences(OgaSequences** out);
void OgaDestroySequences(OgaSequences*);
OgaResult* OgaTokenizerEncode(const OgaTokenizer*, const char* text, OgaSequences* out);
size_t OgaSequencesGetSequenceCount(const OgaSequences*, size_t sequence);
const int32_t* OgaSequencesGetSequenceData(const OgaSequences*, size_t sequence);
OgaResult* OgaTokenizerApplyChatTemplate(const OgaTokenizer*, const char* source, const char* messages,
                                         const char* tools, bool add_generation_prompt, const char** out);
void OgaDestroyString(const char*);
OgaResult* OgaCreateTokenizerStream(const OgaTokenizer*, OgaTokenizerStream** out);
void OgaDestroyTokenizerStream(OgaTokenizerStream*);
OgaResult* OgaTokenizerStreamDecode(OgaTokenizerStream*, int32_t token, const char** out);
}

namespace qeff {
namespace {

namespace fs = std::filesystem;

void check(OgaResult* result) {
  if (!result) return;
  const std::string said = OgaResultGetError(result);
  OgaDestroyResult(result);
  throw Error("onnxruntime-genai cannot tokenize: " + said + " Expected a tokenizer.json that it knows. Tokenize "
              "elsewhere, and give --prompt-ids.");
}

// A folder with the tokenizer's files and a config that onnxruntime-genai insists on: a package need not have one.
struct View {
  explicit View(const fs::path& package) {
    std::string name = (fs::temp_directory_path() / "qeff-run-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error("Cannot make a folder in " + name + ". Expected to. Set TMPDIR.");
    folder = name;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
      if (fs::exists(package / file)) fs::create_symlink(fs::absolute(package / file), folder / file);
    std::ofstream(folder / "genai_config.json") << R"({"model": {"type": "decoder", "context_length": 1,
      "vocab_size": 1, "eos_token_id": 0, "pad_token_id": 0, "decoder": {"filename": "none"}}, "search": {}})";
  }
  ~View() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  fs::path folder;
};

// Reads which tokens a text gets before and after its own. onnxruntime-genai would add all that a template names, those
// of pairs of texts as well.
void read_added(const nlohmann::json& processor, std::vector<int64_t>& before, std::vector<int64_t>& after) {
  if (processor.is_null()) return;
  const std::string type = processor.at("type");
  if (type == "Sequence") {
    for (const auto& one : processor.at("processors")) read_added(one, before, after);
  } else if (type == "TemplateProcessing") {
    auto* added = &before;
    for (const auto& piece : processor.at("single")) {
      if (piece.contains("Sequence")) {
        added = &after;
        continue;
      }
      const auto& name = piece.at("SpecialToken").at("id").get_ref<const std::string&>();
      const auto ids = processor.at("special_tokens").at(name).at("ids").get<std::vector<int64_t>>();
      added->insert(added->end(), ids.begin(), ids.end());
    }
  } else if (type != "ByteLevel") {
    throw Error("Cannot tokenize: tokenizer.json has a post-processor of type " + type +
                ". Expected a template. Tokenize elsewhere, and give --prompt-ids.");
  }
}

}  // namespace

void Tokenizer::Free::operator()(OgaTokenizer* one) const { OgaDestroyTokenizer(one); }
void Tokenizer::Free::operator()(OgaTokenizerStream* one) const { OgaDestroyTokenizerStream(one); }

Tokenizer::Tokenizer(const fs::path& folder) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    if (fs::exists(folder / file)) check_depth(folder / file);
  const View view(folder);
  try {
    const auto tokenizer = nlohmann::json::parse(std::ifstream(folder / "tokenizer.json"));
    read_added(tokenizer.value("post_processor", nlohmann::json()), before_, after_);
  } catch (const nlohmann::json::exception& error) {
    throw Error("Cannot read tokenizer.json: " + std::string(error.what()) +
                ". Expected one of a package. Tokenize elsewhere, and give --prompt-ids.");
  }
  OgaConfig* config = nullptr;
  check(OgaCreateConfig(view.folder.c_str(), &config));
  const std::unique_ptr<OgaConfig, void (*)(OgaConfig*)> owned(config, OgaDestroyConfig);
  OgaTokenizer* tokenizer = nullptr;
  check(OgaCreateTokenizerFromConfig(config, &tokenizer));
  tokenizer_.reset(tokenizer);
  OgaTokenizerStream* stream = nullptr;
  check(OgaCreateTokenizerStream(tokenizer, &stream));
  stream_.reset(stream);
}

std::vector<int64_t> Tokenizer::encode(const std::string& text, bool special_tokens) const {
  OgaSequences* made = nullptr;
  check(OgaCreateSequences(&made));
  const std::unique_ptr<OgaSequences, void (*)(OgaSequences*)> sequences(made, OgaDestroySequences);
  check(OgaTokenizerEncode(tokenizer_.get(), text.c_str(), made));
  const int32_t* tokens = OgaSequencesGetSequenceData(made, 0);
  std::vector<int64_t> ids(special_tokens ? before_ : std::vector<int64_t>());
  ids.insert(ids.end(), tokens, tokens + OgaSequencesGetSequenceCount(made, 0));
  if (special_tokens) ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::chat(const std::string& message) const {
  const auto messages = nlohmann::json::array({{{"role", "user"}, {"content", message}}}).dump();
  const char* text = nullptr;
  check(OgaTokenizerApplyChatTemplate(tokenizer_.get(), nullptr, messages.c_str(), nullptr, true, &text));
  const std::unique_ptr<const char, void (*)(const char*)> owned(text, OgaDestroyString);
  return text;
}

std::string Tokenizer::next(int64_t token) const {
  const char* text = nullptr;  // belongs to the stream
  check(OgaTokenizerStreamDecode(stream_.get(), static_cast<int32_t>(token), &text));
  return text;
}

}  // namespace qeff
