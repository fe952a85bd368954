// SPDX-License-Identifier: Apache-2.0
// A package's decoder in ONNX Runtime: tokens at positions in, the logits after the newest of them out.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "package.hpp"

namespace qeff {

// Answers one text at a time. States are written in place: they are bound as the graph's inputs and its outputs.
class Decoder {
 public:
  // threads: CPU threads of one operator; 0 for one per physical core.
  explicit Decoder(const Package& package, int threads = 0);

  // Forgets the text; what its states hold is never seen by one that starts anew.
  void restart() { length_ = 0; }
  // Tokens of the text so far.
  int64_t length() const { return length_; }

  // Seconds that the graph took so far; the rest of the time is the host's.
  double graph_seconds() const { return graph_seconds_; }

  // Reads more tokens of the text, in chunks; returns vocab_size logits, which the next call overwrites.
  const float* read(const int64_t* tokens, size_t count);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  void call(const int64_t* tokens, int64_t count);
  void bind(int64_t width);
  Ort::Value numbers(std::vector<int64_t>& values, std::vector<int64_t> shape);

  const Package package_;
  Ort::Env env_;
  Ort::MemoryInfo memory_;
  Ort::Session session_;
  Ort::IoBinding binding_;
  std::vector<std::unique_ptr<void, Free>> states_;
  std::vector<float> logits_;
  std::vector<int64_t> ids_, positions_, seen_, kept_;
  int64_t width_ = 0, bound_seen_ = 0, length_ = 0;
  double graph_seconds_ = 0;
  bool says_seen_ = false;
};

}  // namespace qeff
