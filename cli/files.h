// Reading and writing whole files.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::cli {

// Throws InputError naming the file: absent, a folder, unreadable, larger than 1 GiB.
[[nodiscard]] std::string read_file(const std::string& path);

// Complete or as it was before: written beside its place and renamed. Behind a symbolic link, that is the place of the
// file that the link leads to. Devices, pipes and descriptors (/dev/stdout) are written in place. Throws InputError
// when the folder is not there or not writable, MachineError when the disk fails.
void write_file(const std::string& path, std::string_view text);

// Before long work: throws InputError if `path`, which `flag` gave ("--report"), could not be written, without touching
// it, or is one of the files that are read or written otherwise: it would destroy them. What --report names is a page,
// and ends with .html, .htm or without a dot.
void check_output(std::string_view flag, const std::optional<std::string>& path,
                  std::initializer_list<std::optional<std::string>> others = {});

// Throws InputError if the output is the very file that is read: writing it would destroy it.
void check_apart(const std::string& output, const std::string& input);

void print(std::FILE*, std::string_view text);

}  // namespace fsdp::cli
