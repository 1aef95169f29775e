#include "models/memory_script.h"

namespace fsdp {
namespace {

std::string word(const MemoryScript::Step& step) {
  const std::string index = std::to_string(step.index);
  switch (step.what) {
    case MemoryScript::What::temporary: return index;
    case MemoryScript::What::result: return "o" + index;
    case MemoryScript::What::all_results: return "o";
    case MemoryScript::What::extra: return "e";
    case MemoryScript::What::output_gradient: return step.index == 0 ? "y" : "y" + index;
    case MemoryScript::What::input: return "i" + index;
    case MemoryScript::What::saved_output: return "r";
    case MemoryScript::What::saved_read: return "|";
  }
  return {};
}

}  // namespace

std::string MemoryScript::text() const {
  std::string all;
  for (const Step& step : steps()) {
    const std::string_view sign = step.what == What::saved_read ? "" : step.appears ? "+" : "-";
    all.append(all.empty() ? "" : " ").append(sign).append(word(step));
  }
  return all;
}

}  // namespace fsdp
