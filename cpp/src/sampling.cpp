// SPDX-License-Identifier: Apache-2.0
#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "package.hpp"

namespace qeff {
namespace {

constexpr float kColdest = 1e-6F;  // lower temperatures give the same result

void require(bool fits, const char* name, double value, const char* expected) {
  if (!fits)
    throw Error("Cannot sample with " + std::string(name) + " " + std::to_string(value) + "; expected " + expected +
                ". Change it.");
}

}  // namespace

Sampler::Sampler(const Sampling& sampling, const std::vector<int64_t>& prompt)
    : sampling_(sampling), random_(sampling.seed) {
  require(sampling.temperature >= 0 && std::isfinite(sampling.temperature), "temperature", sampling.temperature,
          "0 or more");
  require(sampling.top_k >= 0, "top_k", static_cast<double>(sampling.top_k), "0 or more");
  require(sampling.top_p >= 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "0 to 1");
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p", sampling.min_p, "0 to 1");
  require(sampling.repetition_penalty >= 0.01F && sampling.repetition_penalty <= 100, "repetition_penalty",
          sampling.repetition_penalty, "0.01 to 100");
  if (sampling.repetition_penalty != 1) seen_.insert(prompt.begin(), prompt.end());
}

int64_t Sampler::next(const float* logits, int64_t count) {
  if (sampling_.repetition_penalty != 1) {
    scores_.assign(logits, logits + count);
    for (int64_t token : seen_) {
      float& score = scores_.at(token);
      score = score < 0 ? score * sampling_.repetition_penalty : score / sampling_.repetition_penalty;
    }
    logits = scores_.data();
  }
  int64_t token = std::max_element(logits, logits + count) - logits;
  if (!std::isfinite(logits[token]))
    throw Error("The logit of token " + std::to_string(token) + " is " + std::to_string(logits[token]) +
                "; expected a number. Check the package with `qeff-zoo validate`, and build it again.");
  if (sampling_.temperature > 0) token = draw(logits, count);
  if (sampling_.repetition_penalty != 1) seen_.insert(token);
  return token;
}

int64_t Sampler::draw(const float* logits, int64_t count) {
  std::vector<int64_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto likelier = [logits](int64_t a, int64_t b) { return logits[a] > logits[b]; };
  const int64_t kept = sampling_.top_k ? std::min(sampling_.top_k, count) : count;
  std::partial_sort(tokens.begin(), tokens.begin() + kept, tokens.end(), likelier);
  tokens.resize(kept);

  const float best = logits[tokens[0]], temperature = std::max(sampling_.temperature, kColdest);
  std::vector<double> shares(kept);
  for (int64_t place = 0; place < kept; ++place) shares[place] = std::exp((logits[tokens[place]] - best) / temperature);
  const double nucleus = sampling_.top_p * std::accumulate(shares.begin(), shares.end(), 0.0);
  double reached = 0;
  size_t inside = 0;
  while (inside < shares.size() && shares[inside] >= sampling_.min_p && (inside == 0 || reached < nucleus))
    reached += shares[inside++];
  shares.resize(inside);
  return tokens[std::discrete_distribution<size_t>(shares.begin(), shares.end())(random_)];
}

}  // namespace qeff
