// SPDX-License-Identifier: Apache-2.0
// Logits in, the next token out: the likeliest, or one drawn at random, in the order of transformers' processors.
#pragma once

#include <cstdint>
#include <random>
#include <unordered_set>
#include <vector>

namespace qeff {

// How tokens are chosen; the names and ranges of qeff_zoo.runtime.Sampling.
struct Sampling {
  float temperature = 0;         // 0: the likeliest token each time
  int64_t top_k = 0;             // draw from that many most likely tokens; 0: all
  float top_p = 1;               // draw from the likeliest tokens that together reach this probability
  float min_p = 0;               // draw from tokens with at least this fraction of the likeliest one's probability
  float repetition_penalty = 1;  // by how much tokens of the prompt and the answer are made less likely
  uint64_t seed = 0;
};

// Chooses the tokens of one answer.
class Sampler {
 public:
  // prompt: token ids that come before. Throws Error where a value is out of its range.
  Sampler(const Sampling& sampling, const std::vector<int64_t>& prompt);
  // Throws Error where the likeliest logit is not a number.
  int64_t next(const float* logits, int64_t count);

 private:
  int64_t draw(const float* logits, int64_t count);

  const Sampling sampling_;
  std::unordered_set<int64_t> seen_;
  std::vector<float> scores_;
  std::mt19937_64 random_;
};

}  // namespace qeff
