// The catalog's data files, compiled into the program (models/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace fsdp {

struct EmbeddedFile {
  std::string_view path;  // "configs/llama3-8b.json"
  std::string_view text;
};
[[nodiscard]] std::span<const EmbeddedFile> embedded_files();  // sorted within each folder

}  // namespace fsdp
