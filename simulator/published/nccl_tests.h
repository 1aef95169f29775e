// What nccl-tests printed, as measured curves of collectives.
//
//   const NcclLog log = read_nccl_tests(file, "all_gather.log", {});
//   costs.collective_curves = curves_of(log.samples);       // of several logs together: put their samples after one
//                                                           another
//
// A log may hold several tests, one after another, between any other lines (NCCL's own messages, mpirun's tags before
// each line, warnings), and may end anywhere. Columns are taken from the table's header, so that versions before 2.13
// (no root, no redop for all-gathers, "error" for "#wrong") are read too. Sizes are those of nccl-tests: the full
// tensor.
//
// A row has two halves. The one that FSDP uses counts: in place for all-gathers and all-reduces, out of place for
// reduce-scatters; the other half stands in where that one is missing. Rows of size or time 0, rows with wrong results
// and truncated rows are not used.
//
// The collective is the one that the log names ("Collective test starting: all_gather_perf", a command line), else the
// file's name, else the table: bus over algorithm bandwidth is 2(n-1)/n for all-reduce and (n-1)/n for the other two,
// of which reduce-scatter has an operation and all-gather has none. Tests of other collectives are left out, with a
// note. The ranks are those of the list of devices, unless the caller gives them.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/costs.h"

namespace fsdp {

struct NcclSample {
  CollectiveKind kind{};
  std::int64_t ranks = 0, ranks_per_node = 0;
  double size = 0, seconds = 0;
  friend bool operator==(const NcclSample&, const NcclSample&) = default;
};

struct NcclLog {
  std::vector<NcclSample> samples;
  std::string device;              // "NVIDIA H100 80GB HBM3", of the first rank; empty: not said
  std::vector<std::string> notes;  // what was left out, with line numbers
};

struct NcclLogOptions {
  std::optional<std::int64_t> ranks,
      ranks_per_node;  // where logs lack their list of devices, or hosts are not NVLink domains
};

// Throws InputError("FILE: line N", ...): empty, not text, no table of nccl-tests in it, or a table of unknown ranks.
[[nodiscard]] NcclLog read_nccl_tests(std::istream&, std::string_view where, const NcclLogOptions&);

// One curve per collective and shape of group; the median where a size was measured more than once.
[[nodiscard]] std::vector<CollectiveCurve> curves_of(std::span<const NcclSample>);

// The catalog's name of a GPU that calls itself so ("NVIDIA H100 80GB HBM3" -> "h100-sxm-80"); empty: unknown.
[[nodiscard]] std::string gpu_of_device(std::string_view device);

}  // namespace fsdp
