// torchtitan's names of models that the catalog has.
#pragma once

#include <string_view>

namespace fsdp {

struct TitanFlavor {
  std::string_view ours, name, flavor, config;
};
inline constexpr TitanFlavor kTitanFlavors[] = {{"llama3-8b", "llama3", "8B", "llama3_8b"},
                                                {"llama3.1-8b", "llama3", "8B", "llama3_8b"},
                                                {"llama3-70b", "llama3", "70B", "llama3_70b"},
                                                {"llama3.1-70b", "llama3", "70B", "llama3_70b"},
                                                {"llama3.1-405b", "llama3", "405B", "llama3_405b"},
                                                {"qwen3-32b", "qwen3", "32B", "qwen3_32b"},
                                                {"qwen3-30b-a3b", "qwen3", "30B-A3B", "qwen3_30b_a3b"}};

}  // namespace fsdp
