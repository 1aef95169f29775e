// Training runs that others measured and published, one per line of a CSV file: what the `accuracy` command and the fit
// read.
//
//   const PublishedRuns file = parse_runs(text, "runs.csv");
//   file.runs, file.refused                 // every line is in one of them
//
// The columns are those of tests/accuracy/published_runs.csv, in any order. Unknown columns are ignored, and
// named; a missing column counts as empty in every row. An empty cell means that the source does not say.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/published/reading/csv.h"

namespace fsdp {

struct PublishedRun {
  std::int64_t line = 0;                  // in the file, from 1
  std::string id;                         // "line 7" where the file says none
  std::string source, source_ref, trust;  // where it was read; "A" or "B"
  std::string framework, model, gpu;      // "fsdp1"; "Llama-3-8B"; "h100-sxm-80"
  std::string strategy, wrap, reshard, backward_prefetch, grad_sync;
  std::string param_dtype, reduce_dtype, precision, optimizer;
  std::string activation_checkpointing, cpu_offload, compile, float8, attention, loss, expandable_segments;
  std::string memory_kind, software, software_generation, notes;
  std::string master_dtype, forward_prefetch, activation_offload;
  std::string async_tp;            // "yes": products overlap with what they gather and scatter over tensor ranks
  std::string lora, lora_targets;  // "16" or what --lora takes; "q,k,v,o", "all linear"
  std::string failed;              // "oom": it ran out of memory; another word: it failed otherwise
  std::optional<std::int64_t> params, layers, hidden, heads, kv_heads, ffn, vocab, seq_len;
  std::optional<std::int64_t> head_dim, experts, experts_per_token, moe_ffn, lora_rank;
  std::optional<std::int64_t> tp, cp, pp, ep;  // sizes of parallelism beside the data's
  std::optional<std::int64_t> gpus, gpus_per_node, dp_shard, dp_replicate, micro_batch, grad_accum, global_batch;
  std::optional<double> fabric_gbps_per_gpu, clip_norm, tokens_per_s_per_gpu, step_time_s, peak_memory_gib;
  friend bool operator==(const PublishedRun&, const PublishedRun&) = default;
};

// Constants are fitted per platform: who measured, on what, with which generation of software. Cells joined by " | ".
[[nodiscard]] std::string platform_of(const PublishedRun&);

struct RefusedRow {
  std::string id, reason;
  friend bool operator==(const RefusedRow&, const RefusedRow&) = default;
};

struct PublishedRuns {
  std::vector<PublishedRun> runs;
  std::vector<RefusedRow>
      refused;  // rows that could not be read: broken quoting, wrong number of cells, cells that should be numbers
};

// Row by row, in bounded memory. The constructor reads the header line and throws InputError(where, ...) for a file
// that is not such a CSV: empty, binary, or without the columns model or layers, gpu, gpus, seq_len, and one of
// the batch columns.
class RunReader {
 public:
  RunReader(std::istream&, std::string_view where);
  // The next row, as a run or as the reason why it cannot be read; false at the end.
  [[nodiscard]] bool next(std::optional<PublishedRun>& run, RefusedRow& refused);
  // Columns that nothing is read from, each with the one that may be meant.
  [[nodiscard]] const std::vector<std::string>& ignored_columns() const { return ignored_columns_; }

 private:
  [[nodiscard]] PublishedRun read() const;
  [[nodiscard]] std::string place() const;
  CsvReader csv_;
  std::vector<int> field_of_;  // per column: which field it fills, -1: none
  std::vector<std::string> ignored_columns_;
  int id_column_ = -1;
};

[[nodiscard]] PublishedRuns parse_runs(std::string_view csv_text, std::string_view where);

}  // namespace fsdp
