#include "planner/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/input/error.h"
#include "planner/emit/formats.h"

namespace fsdp {
namespace {

struct Format {
  std::string_view name;
  Emitted (*make)(const ShardingPlan&, const ModelGraph&);
};
constexpr Format kFormats[] = {
    {"pytorch", emit_pytorch}, {"accelerate", emit_accelerate}, {"torchtitan", emit_torchtitan}};

// Names come from files: keep them from ending a comment line or from being no text at all.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return text;
}

}  // namespace

std::vector<std::string> emit_formats() {
  std::vector<std::string> names;
  for (const Format& f : kFormats) names.emplace_back(f.name);
  return names;
}

Emitted emit(std::string_view format, const ShardingPlan& plan, const ModelGraph& model) {
  for (const Format& f : kFormats) {
    if (f.name != format) continue;
    check(plan, model, "plan");
    if (plan.dialect == Dialect::fsdp1 && format != "accelerate")
      throw InputError(setting("emit"),
                       "'" + std::string(format) + "' writes fully_shard (fsdp2) or DDP, and the plan is fsdp1",
                       "use accelerate, or plan with another --dialect");
    return f.make(plan, model);
  }
  throw InputError(setting("emit"), "unknown format '" + std::string(format) + "'",
                   "use one of: " + join(emit_formats(), ", "));
}

bool reshards(const Unit& unit) {
  if (unit.reshard_after_forward != Reshard::automatic) return unit.reshard_after_forward != Reshard::no;
  return unit.modules != std::vector<std::string>{""};
}

std::vector<std::string> block_names(const ModelGraph& model) {
  std::vector<std::string> names;
  for (const Module& m : model.modules) {
    if (m.block) names.push_back(m.name);
  }
  return names;
}

bool has_frozen_parameters(const ModelGraph& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) { return !p.trainable; });
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i == 0 ? "" : separator) + parts[i];
  return text;
}

std::string norm_type_text(const ShardingPlan& plan) {
  return std::isinf(plan.clip_norm_type) ? "inf" : number(plan.clip_norm_type);
}

std::string number(double value) {
  std::string text = fmt::format("{}", value);  // shortest text that reads back as the same double
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  const std::size_t e = text.find('e');  // YAML 1.1 and TOML 0.x readers want a dot before the exponent
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c < 0x20 || c > 0x7e) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string header(const ShardingPlan& plan, const ModelGraph& model, const std::string& what,
                   const std::vector<std::string>& cannot_express) {
  std::string text = "# " + what + ", written by fsdp-plan.\n#\n";
  text += one_line(fmt::format("# model       {}, {} parameters, digest {}", model.name, model.parameter_count(),
                               plan.model_digest)) +
          "\n";
  text += one_line(fmt::format("# plan        {}, wrap {}, {} units, digest {}", dialect_text(plan),
                               plan.wrap.empty() ? "by hand" : plan.wrap, plan.units.size(), plan.digest())) +
          "\n";
  text += fmt::format("# ranks       {} = {} replicas x {} shards\n", plan.ranks(), plan.replicate(), plan.shard());
  text += fmt::format("# batch       {} sequences of {} tokens per rank and step, {} tokens per step\n",
                      plan.sequences_per_rank(), plan.seq_len, plan.tokens_per_step());
  if (!cannot_express.empty()) text += "#\n# This format has no word for:\n";
  for (const std::string& c : cannot_express) text += one_line("#  - " + c) + "\n";
  return text;
}

}  // namespace fsdp
