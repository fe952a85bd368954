// SPDX-License-Identifier: Apache-2.0
#include "decoder.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <map>

namespace qeff {
namespace {

struct Kind {
  ONNXTensorElementDataType type;
  size_t size;
};

Kind kind_of(const std::string& dtype) {
  static const std::map<std::string, Kind> kinds{{"float32", {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4}},
                                                 {"float16", {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2}},
                                                 {"int64", {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8}}};
  const auto found = kinds.find(dtype);
  if (found == kinds.end())
    throw Error("Cannot retain a state of " + dtype + "; expected float32, float16 or int64. Run the package with "
                "`qeff-zoo run`.");
  return found->second;
}

// x86-64 without VNNI and AMX sums products of uint8 by int8 in 16 bits, and saturates.
bool sums_in_32_bits() {
  std::ifstream description("/proc/cpuinfo");
  for (std::string word; description >> word;)
    if (word == "avx512_vnni" || word == "avx_vnni" || word == "amx_int8") return true;
  return false;
}

Ort::SessionOptions options_of(int threads) {
  Ort::SessionOptions options;
  options.SetLogSeverityLevel(ORT_LOGGING_LEVEL_ERROR);
  if (!sums_in_32_bits()) options.AddConfigEntry("session.x64quantprecision", "1");
  // Its kernels round left sides by rows, not in blocks.
  options.AddConfigEntry("mlas.disable_kleidiai", "1");
  if (threads > 0) options.SetIntraOpNumThreads(threads);
  return options;
}

}  // namespace

Decoder::Decoder(const Package& package, int threads)
    : package_(package),
      env_(ORT_LOGGING_LEVEL_ERROR, "qeff-run"),
      memory_(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault)),
      session_(env_, package.graph.c_str(), options_of(threads)),
      binding_(session_),
      logits_(package.vocab_size),
      kept_(1) {
  for (const auto& state : package_.states) {
    const Kind kind = kind_of(state.dtype);
    size_t count = 1;
    for (int64_t size : state.shape) count *= static_cast<size_t>(size);
    // Zeroed pages of the system's: memory is taken as positions are first written.
    states_.emplace_back(std::calloc(count, kind.size));
    if (!states_.back()) throw std::bad_alloc();
    auto value = Ort::Value::CreateTensor(memory_, states_.back().get(), count * kind.size, state.shape.data(),
                                          state.shape.size(), kind.type);
    binding_.BindInput(state.name.c_str(), value);
    binding_.BindOutput((state.name + "_RetainedState").c_str(), value);
  }
  const std::array<int64_t, 3> shape{1, 1, package_.vocab_size};
  binding_.BindOutput("logits", Ort::Value::CreateTensor<float>(memory_, logits_.data(), logits_.size(), shape.data(),
                                                                shape.size()));
  for (const auto& name : package_.inputs) {
    if (name == "num_logits_to_keep") binding_.BindInput(name.c_str(), numbers(kept_, {1}));
    says_seen_ |= name == "comp_ctx_lengths";
  }
}

Ort::Value Decoder::numbers(std::vector<int64_t>& values, std::vector<int64_t> shape) {
  return Ort::Value::CreateTensor<int64_t>(memory_, values.data(), values.size(), shape.data(), shape.size());
}

const float* Decoder::read(const int64_t* tokens, size_t count) {
  if (count == 0 || length_ + static_cast<int64_t>(count) > package_.ctx_len)
    throw Error("Cannot read " + std::to_string(count) + " tokens after " + std::to_string(length_) +
                "; expected 1 to " + std::to_string(package_.ctx_len) +
                " in all. Shorten the prompt, or build with a larger --ctx-len.");
  for (size_t start = 0; start < count; start += package_.prefill_seq_len)
    call(tokens + start, std::min<int64_t>(package_.prefill_seq_len, count - start));
  return logits_.data();
}

void Decoder::call(const int64_t* tokens, int64_t count) {
  if (count != width_) bind(count);
  std::copy_n(tokens, count, ids_.begin());
  for (int64_t place = 0; place < count; ++place) positions_[place] = length_ + place;
  if (says_seen_) {
    const auto covering = std::lower_bound(package_.contexts.begin(), package_.contexts.end(), length_ + count);
    const int64_t seen = covering == package_.contexts.end() ? package_.ctx_len : *covering;
    if (seen != bound_seen_) {
      seen_.assign(seen, 0);
      binding_.BindInput("comp_ctx_lengths", numbers(seen_, {seen}));
      bound_seen_ = seen;
    }
  }
  const auto begun = std::chrono::steady_clock::now();
  session_.Run(Ort::RunOptions{nullptr}, binding_);
  graph_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  length_ += count;
}

// Binds inputs of another width; what decodes token by token binds them once.
void Decoder::bind(int64_t width) {
  ids_.resize(width);
  positions_.resize(width);
  binding_.BindInput("input_ids", numbers(ids_, {1, width}));
  binding_.BindInput("position_ids", numbers(positions_, {1, width}));
  width_ = width;
}

}  // namespace qeff
