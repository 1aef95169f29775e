// compiled_once.h for tests that read JSON. Parsing alone is several seconds of some tests' compilation.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/precompiled/compiled_once.h"

extern template class nlohmann::basic_json<>;
extern template class std::vector<nlohmann::json>;
extern template class std::vector<nlohmann::json*>;
extern template class std::map<std::string, nlohmann::json, std::less<>>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::iter_impl<const nlohmann::json>;
extern template nlohmann::json nlohmann::json::parse(std::ifstream&, nlohmann::json::parser_callback_t, bool, bool);
extern template nlohmann::json nlohmann::json::parse(std::ifstream&&, nlohmann::json::parser_callback_t, bool, bool);
extern template nlohmann::json nlohmann::json::parse(std::string&&, nlohmann::json::parser_callback_t, bool, bool);
extern template nlohmann::json nlohmann::json::parse(const std::string&, nlohmann::json::parser_callback_t, bool, bool);
