#include "simulator/published/reading/published_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <sstream>
#include <variant>

#include "models/input/error.h"
#include "models/input/suggest.h"
#include "simulator/published/reading/cells.h"

namespace fsdp {
namespace {

using Run = PublishedRun;
using TextField = std::string Run::*;
using CountField = std::optional<std::int64_t> Run::*;
using NumberField = std::optional<double> Run::*;
struct Column {
  std::string_view name;
  std::variant<TextField, CountField, NumberField> field;
  double least = 0, most = 0;  // of numbers
};

constexpr std::size_t kMaxText = 16384;  // bytes of a cell
constexpr double kBig = 9e15;            // whole numbers that a double holds exactly
// Ranges say what is impossible, not what is unusual.
const std::array kColumns{
    Column{"id", &Run::id},
    Column{"source", &Run::source},
    Column{"source_ref", &Run::source_ref},
    Column{"trust", &Run::trust},
    Column{"framework", &Run::framework},
    Column{"model", &Run::model},
    Column{"gpu", &Run::gpu},
    Column{"strategy", &Run::strategy},
    Column{"wrap", &Run::wrap},
    Column{"reshard", &Run::reshard},
    Column{"backward_prefetch", &Run::backward_prefetch},
    Column{"grad_sync", &Run::grad_sync},
    Column{"param_dtype", &Run::param_dtype},
    Column{"reduce_dtype", &Run::reduce_dtype},
    Column{"precision", &Run::precision},
    Column{"optimizer", &Run::optimizer},
    Column{"activation_checkpointing", &Run::activation_checkpointing},
    Column{"cpu_offload", &Run::cpu_offload},
    Column{"compile", &Run::compile},
    Column{"float8", &Run::float8},
    Column{"attention", &Run::attention},
    Column{"loss", &Run::loss},
    Column{"expandable_segments", &Run::expandable_segments},
    Column{"memory_kind", &Run::memory_kind},
    Column{"software", &Run::software},
    Column{"software_generation", &Run::software_generation},
    Column{"notes", &Run::notes},
    Column{"master_dtype", &Run::master_dtype},
    Column{"forward_prefetch", &Run::forward_prefetch},
    Column{"activation_offload", &Run::activation_offload},
    Column{"async_tp", &Run::async_tp},
    Column{"lora", &Run::lora},
    Column{"lora_targets", &Run::lora_targets},
    Column{"failed", &Run::failed},
    Column{"params", &Run::params, 1, kBig},
    Column{"layers", &Run::layers, 1, 1e4},
    Column{"hidden", &Run::hidden, 1, 1 << 24},
    Column{"heads", &Run::heads, 1, 65536},
    Column{"kv_heads", &Run::kv_heads, 1, 65536},
    Column{"ffn", &Run::ffn, 1, 1 << 24},
    Column{"vocab", &Run::vocab, 1, 1 << 30},
    Column{"seq_len", &Run::seq_len, 1, 1 << 30},
    Column{"head_dim", &Run::head_dim, 1, 65536},
    Column{"experts", &Run::experts, 1, 65536},
    Column{"experts_per_token", &Run::experts_per_token, 1, 65536},
    Column{"moe_ffn", &Run::moe_ffn, 1, 1 << 24},
    Column{"lora_rank", &Run::lora_rank, 1, 1 << 20},
    Column{"tp", &Run::tp, 1, 1 << 20},
    Column{"cp", &Run::cp, 1, 1 << 20},
    Column{"pp", &Run::pp, 1, 1 << 20},
    Column{"ep", &Run::ep, 1, 1 << 20},
    Column{"gpus", &Run::gpus, 1, 1 << 20},
    Column{"gpus_per_node", &Run::gpus_per_node, 1, 1024},
    Column{"dp_shard", &Run::dp_shard, 1, 1 << 20},
    Column{"dp_replicate", &Run::dp_replicate, 1, 1 << 20},
    Column{"micro_batch", &Run::micro_batch, 1, 1 << 20},
    Column{"grad_accum", &Run::grad_accum, 1, 1 << 16},
    Column{"global_batch", &Run::global_batch, 1, kBig},
    Column{"fabric_gbps_per_gpu", &Run::fabric_gbps_per_gpu, 1e-3, 1e6},
    Column{"clip_norm", &Run::clip_norm, 0, 1e30},
    Column{"tokens_per_s_per_gpu", &Run::tokens_per_s_per_gpu, 1e-9, 1e12},
    Column{"step_time_s", &Run::step_time_s, 1e-9, 1e9},
    Column{"peak_memory_gib", &Run::peak_memory_gib, 1e-6, 1e6},
};

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string_view::npos ? std::string() : std::string(text.substr(first, last - first + 1));
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t more = c < 0x80                ? 0
                             : c >= 0xC2 && c < 0xE0 ? 1
                             : (c & 0xF0) == 0xE0    ? 2
                             : c >= 0xF0 && c < 0xF5 ? 3
                                                     : 4;
    if (more > 3 || i + more >= text.size()) return false;
    for (std::size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    i += more + 1;
  }
  return true;
}

[[noreturn]] void refuse(const Column& column, std::string_view cell, const std::string& problem) {
  throw InputError(std::string(column.name), "\"" + printable(cell) + "\" " + problem);
}

double number(const Column& column, std::string_view cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error == std::errc::result_out_of_range) refuse(column, cell, "is out of range");
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value))
    refuse(column, cell, "is not a number");
  if (value < column.least || value > column.most)
    refuse(column, cell, fmt::format("is impossible: from {:g} to {:g} is expected", column.least, column.most));
  return value;
}

// "512" and, as spreadsheets write it, "512.0". Tokens also "8k": 8,192.
std::int64_t count(const Column& column, std::string_view cell) {
  const bool kilo = column.name == "seq_len" && cell.size() > 1 && (cell.back() == 'k' || cell.back() == 'K');
  const double value = kilo ? 1024 * number(column, cell.substr(0, cell.size() - 1)) : number(column, cell);
  if (value != std::floor(value)) refuse(column, cell, "is not a whole number");
  return static_cast<std::int64_t>(value);
}

void fill(Run& run, const Column& column, const std::string& raw) {
  const std::string cell = trimmed(raw);
  if (const auto* text = std::get_if<TextField>(&column.field)) {
    if (!is_utf8(cell)) throw InputError(std::string(column.name), "\"" + printable(cell) + "\" is not UTF-8");
    if (cell.size() > kMaxText)
      throw InputError(std::string(column.name),
                       fmt::format("holds {} bytes; at most {} are expected", cell.size(), kMaxText));
    if (cell.find('\0') != std::string::npos) throw InputError(std::string(column.name), "holds a NUL byte");
    run.*(*text) = cell;
  } else if (cell.empty()) {
    return;
  } else if (column.name == "clip_norm" && says_no(cell)) {
    run.clip_norm = 0;  // not clipped
  } else if (const auto* whole = std::get_if<CountField>(&column.field)) {
    run.*(*whole) = count(column, cell);
  } else {
    run.*std::get<NumberField>(column.field) = number(column, cell);
  }
}

// Columns of our own file that say more to people than to a prediction.
constexpr std::string_view kForPeople[] = {"gpu_detail", "mfu", "pp_schedule"};

// `"seqlen" (did you mean "seq_len"?)`
std::string unknown_column(const std::string& name) {
  std::vector<std::string> names;
  for (const Column& c : kColumns) names.emplace_back(c.name);
  const std::vector<std::string> near = nearest(name, names, 1);
  return "\"" + printable(name) + "\"" + (near.empty() ? "" : " (did you mean \"" + near.front() + "\"?)");
}

const Column& column_of(int index) { return kColumns[static_cast<std::size_t>(index)]; }

}  // namespace

std::string platform_of(const Run& run) {
  return fmt::format("{} | {} | {}", run.source, run.gpu, run.software_generation);
}

RunReader::RunReader(std::istream& in, std::string_view where) : csv_(in) {
  const std::string file(where);
  const std::string remedy = "give a CSV with a header line and the columns of tests/accuracy/published_runs.csv";
  if (!csv_.next()) throw InputError(file, "is empty", remedy);
  std::vector<int> seen(kColumns.size(), 0);
  for (const std::string& cell : csv_.cells()) {
    const std::string name = lower_case(trimmed(cell));
    const auto at = std::find_if(kColumns.begin(), kColumns.end(), [&](const Column& c) { return c.name == name; });
    const int index = at == kColumns.end() ? -1 : static_cast<int>(at - kColumns.begin());
    if (index >= 0 && seen[static_cast<std::size_t>(index)]++ > 0)
      throw InputError(file, "names the column " + name + " twice", "leave one of them out");
    if (index < 0 && std::find(std::begin(kForPeople), std::end(kForPeople), name) == std::end(kForPeople))
      ignored_columns_.push_back(unknown_column(name));
    if (index == 0) id_column_ = static_cast<int>(field_of_.size());
    field_of_.push_back(index);
  }
  const auto has = [&](std::string_view name) {
    const auto at = std::find_if(kColumns.begin(), kColumns.end(), [&](const Column& c) { return c.name == name; });
    return seen[static_cast<std::size_t>(at - kColumns.begin())] > 0;
  };
  std::vector<std::string> missing;
  if (!has("model") && !has("layers")) missing.emplace_back("model or layers");
  for (const char* name : {"gpu", "gpus", "seq_len"})
    if (!has(name)) missing.emplace_back(name);
  if (!has("micro_batch") && !has("global_batch")) missing.emplace_back("micro_batch or global_batch");
  if (!missing.empty()) {
    const bool none = std::all_of(seen.begin(), seen.end(), [](int n) { return n == 0; });
    throw InputError(file,
                     none ? "is not a CSV of training runs: its first line names none of their columns"
                          : "lacks the columns " + join(missing) +
                                (ignored_columns_.empty() ? "" : "; unknown: " + join(ignored_columns_)),
                     remedy);
  }
}

std::string RunReader::place() const {
  if (csv_.last_line() == csv_.line()) return fmt::format("line {}", csv_.line());
  return fmt::format("lines {} to {}", csv_.line(), csv_.last_line());
}

PublishedRun RunReader::read() const {
  Run run;
  for (std::size_t i = 0; i < field_of_.size(); ++i)
    if (field_of_[i] >= 0) fill(run, column_of(field_of_[i]), csv_.cells()[i]);
  run.line = csv_.line();
  if (run.id.empty()) run.id = place();
  return run;
}

bool RunReader::next(std::optional<Run>& run, RefusedRow& refused) {
  run.reset();
  if (!csv_.next()) return false;
  refused = {place(), {}};
  const auto& cells = csv_.cells();
  if (!csv_.problem().empty()) {
    refused.reason = csv_.problem();
    return true;
  }
  if (cells.size() != field_of_.size()) {
    refused.reason = fmt::format("{} cells, the header has {}", cells.size(), field_of_.size());
    return true;
  }
  try {
    run = read();
  } catch (const InputError& e) {
    if (id_column_ >= 0) {
      const std::string id = trimmed(cells[static_cast<std::size_t>(id_column_)]);
      if (!id.empty() && is_utf8(id)) refused.id = printable(id);
    }
    refused.reason = e.what();
  }
  return true;
}

PublishedRuns parse_runs(std::string_view csv_text, std::string_view where) {
  std::istringstream in{std::string(csv_text)};
  RunReader reader(in, where);
  PublishedRuns out;
  std::optional<Run> run;
  RefusedRow refused;
  while (reader.next(run, refused)) {
    if (run) out.runs.push_back(std::move(*run));
    else out.refused.push_back(std::move(refused));
  }
  return out;
}

}  // namespace fsdp
