// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, by onnxruntime-genai's tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

struct OgaTokenizer;
struct OgaTokenizerStream;

namespace qeff {

// Reads a package's tokenizer.json.
class Tokenizer {
 public:
  explicit Tokenizer(const std::filesystem::path& folder);

  // special_tokens: add those that the tokenizer's post-processor says, such as BOS.
  std::vector<int64_t> encode(const std::string& text, bool special_tokens = true) const;
  // Applies the chat template to one message of a user.
  std::string chat(const std::string& message) const;
  // The text that a token adds to those before it in the stream; empty in the middle of a character.
  std::string next(int64_t token) const;

 private:
  struct Free {
    void operator()(OgaTokenizer* one) const;
    void operator()(OgaTokenizerStream* one) const;
  };
  std::vector<int64_t> before_, after_;  // tokens that every text gets
  std::unique_ptr<OgaTokenizer, Free> tokenizer_;
  std::unique_ptr<OgaTokenizerStream, Free> stream_;
};

}  // namespace qeff
