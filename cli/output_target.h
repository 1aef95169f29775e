// Where the name of an output leads: behind symbolic links, and to descriptors that are open already.
#pragma once

#include <optional>
#include <string>

namespace fsdp::cli {

struct OutputTarget {
  std::string path;               // no symbolic link, though its folder may be one; need not exist
  std::optional<int> descriptor;  // of /dev/stdout, /dev/fd/3 and links to them: written there, nothing is replaced
  friend bool operator==(const OutputTarget&, const OutputTarget&) = default;
};

// Follows the links of the last part of `path`, dangling ones too. Throws InputError for links in a ring.
[[nodiscard]] OutputTarget output_target(const std::string& path);

// The folder that a file is in: "a/b" -> "a/", "b" -> "./".
[[nodiscard]] std::string folder_of(const std::string& path);

}  // namespace fsdp::cli
