// Fields and their flags, and how these are typed. Rooms name the fields of a plan and the settings of a call; here
// alone stands which flag of the command line decides each of them.
#pragma once

#include <string>
#include <string_view>

#include "models/input/error.h"

namespace fsdp::cli {

// "seq_len" -> "--seq-len"; empty if no flag decides it.
[[nodiscard]] std::string_view flag_of(std::string_view field);

// An error about a setting names the flag: "seq_len: ..." becomes "--seq-len: ...". Files and fields in files stay.
[[nodiscard]] InputError naming_flags(const InputError&);
// The same for a plan that was made from flags: "plan: units[3].modules: ..." becomes "--wrap: ...".
[[nodiscard]] InputError naming_plan_flags(const InputError&);
// The same error, said of the flag that named the file: "--resume: ckpt/manifest.json: step: ...".
[[nodiscard]] InputError said_of(const std::string& flag, const InputError&);

// A word as a shell reads it back: quoted where it has to be.
[[nodiscard]] std::string shell_word(const std::string&);

}  // namespace fsdp::cli
