// Configurations read for a tiny model, as tests of `lint` do it.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/catalog.h"
#include "planner/lint/read_config.h"
#include "tests/support/refusal.h"

namespace fsdp::testing {

inline const ModelGraph& llama() {
  static const ModelGraph kModel = load_model("tiny-llama");
  return kModel;
}
inline ReadConfig read(const std::string& text) { return read_config(text, "c", llama()); }
inline std::map<std::string, std::string> settings(const std::string& text) {
  std::map<std::string, std::string> all;
  for (const ConfigSetting& s : read(text).settings) {
    CHECK_MESSAGE(!all.contains(s.name), s.name);
    all[s.name] = s.value;
  }
  return all;
}
inline std::string refused(const std::string& text) {
  return refusal([&] { return read(text); });
}

}  // namespace fsdp::testing
