// Numbers as people type them: counts, tokens, percentages. Each parser throws InputError, naming `where`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/dtype.h"
#include "models/input/limits.h"

namespace fsdp::cli {

using Text = std::optional<std::string>;  // as typed; empty: not given

inline constexpr std::int64_t kMostSteps = 1'000'000'000;  // that any flag can ask for

// Whole numbers in digits: "--gpus: '-3' is not a whole number from 1 to 1,000,000; ...".
[[nodiscard]] std::int64_t parse_count(const std::string& text, const std::string& where, std::int64_t least,
                                       std::int64_t most);
[[nodiscard]] std::optional<std::int64_t> parse_optional_count(const Text& text, const char* flag, std::int64_t least,
                                                               std::int64_t most);
// The same of a flag whose field has a limit: its name is that of the field's flag.
[[nodiscard]] std::int64_t parse_count(const std::string& text, const Limit&);
[[nodiscard]] std::optional<std::int64_t> parse_optional_count(const Text& text, const Limit&);

// A number of tokens: "32768", "32k", "4M", "4M tokens". k is 1,024 and M is 1,048,576, as in "a context of 128k".
[[nodiscard]] std::int64_t parse_tokens(const std::string& text, const Limit&);

// Whether both are numbers, and equal: "8" and "08", "1" and "1.0".
[[nodiscard]] bool same_number(std::string_view, std::string_view);

// "5%" -> 0.05; the percent sign is required.
[[nodiscard]] double parse_percent(const std::string& text, const std::string& where);

// "true" or "false".
[[nodiscard]] bool parse_switch(const std::string& text, const char* flag);

// Of an optimizer, up to 1e6: "3e-4". `zero`: 0 is one, too.
[[nodiscard]] double parse_coefficient(const std::string& text, const char* flag, bool zero);

// More than zero.
[[nodiscard]] double parse_positive(const std::string& text, const char* flag, const char* remedy);
[[nodiscard]] double parse_factor(const std::string& text, const char* flag, const char* remedy);  // in [0, 1)

// Of numbers (no int64): fp64, fp32, bf16, fp16, or those of them that the flag takes.
inline constexpr DType kNumberTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
[[nodiscard]] DType parse_number_type(const std::string& text, const char* flag,
                                      std::span<const DType> accepted = kNumberTypes);

}  // namespace fsdp::cli
