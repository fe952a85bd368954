// SPDX-License-Identifier: Apache-2.0
// A package's manifest, read: what its decoder is called, retains and was compiled for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

namespace qeff {

// What went wrong, in four parts: what failed, the value, what was expected, what to do.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Refuses JSON whose lists and objects nest deeper than those of any package: libraries read and copy them by recursion.
void check_depth(const std::filesystem::path& path);

// A tensor that the graph retains from call to call; the shape has one row.
struct State {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

// A package of target ort, or of openvino, whose graph ONNX Runtime computes as well, for text generation.
struct Package {
  std::filesystem::path folder;
  std::filesystem::path graph;
  std::vector<std::string> inputs;  // besides states
  std::vector<State> states;
  std::vector<int64_t> contexts;  // rows of the cache that a call may read, ascending; none: all
  std::unordered_set<int64_t> eos;
  int64_t prefill_seq_len = 0;
  int64_t ctx_len = 0;
  int64_t vocab_size = 0;

  // Reads a package's folder. Throws Error where it is none that can run here.
  static Package open(const std::filesystem::path& folder);
};

}  // namespace qeff
