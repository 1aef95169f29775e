// Models of the catalog by the names that people type: of the Hugging Face hub, in any case, with any separators.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Letters and digits in lower case: "Llama-3-8B" and "llama3-8b" are the same name.
[[nodiscard]] std::string plain_name(std::string_view);

// The catalog's model that is meant; empty if there is none.
//   catalog_name("Qwen/Qwen2.5-7B")  -> "qwen2.5-7b"
//   catalog_name("LLAMA3_8B")        -> "llama3-8b"
[[nodiscard]] std::string catalog_name(std::string_view spec);

// What to do about a name that is neither in the catalog nor a file: the nearest names, and for "organisation/model"
// which file to fetch.
[[nodiscard]] std::string name_advice(std::string_view spec);

}  // namespace fsdp
