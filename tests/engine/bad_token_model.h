// A model of finite weights whose loss is finite unless a sample holds one token: for steps that go wrong
// among steps that do not.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trireme::testing {

inline constexpr int32_t kBadToken = 69;  // of tiny_llama_config's vocabulary

// Writes it. Small steps alone keep the other tokens' losses finite: learning rates of 1e-12.
void write_bad_token_model(const std::filesystem::path& folder);

}  // namespace trireme::testing
