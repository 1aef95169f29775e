// The report: one HTML page that shows an answer and needs nothing beside it, neither a network nor other files.
//
//   ReportPage page;
//   page.command = "simulate", page.verdict = "Fits: step 1.06 s, ...", page.answer = to_json_text(prediction);
//   page.steps.push_back(report_step("predicted", {program, plan, model, prediction.timeline, demands}));
//   write_file("out.html", report_html(page));
//
// The page's source is viz/page/. It shows the values of `answer`, the document that `--json=brief` prints. What is
// drawn (timeline, memory) is packed into columns; the document "fsdp-plan/report/1" that holds all of it is compressed
// by zlib and written in base64, so that no text of a model or of a path is ever read as markup.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "simulator/records/rows.h"
#include "viz/step_picture.h"

namespace fsdp {

// The columns of a step as a JSON object: times are integers in nanoseconds, sizes in bytes. A column of deltas begins
// with its first value; "_d" at the end of its name says so.
struct ReportStep {
  std::string name;     // "predicted", "measured rank 0", a plan's label
  std::string columns;  // JSON
};
[[nodiscard]] ReportStep report_step(std::string name, const StepPicture&);

// The same of two records, which do not say who waits for whom nor what memory is for. As many spans as `issued` has.
struct RecordedStep {
  std::span<const OrderedOperation> order;  // stream by stream
  std::span<const std::int32_t> issued;     // of each operation in host order: its index in `order`; -1: on no stream
  const Timeline& timeline;
  const MemoryTimeline& memory;              // as predicted
  const MemoryTimeline* measured = nullptr;  // what the allocator counted
};
[[nodiscard]] ReportStep report_step(std::string name, const RecordedStep&);

// The units of a plan as a JSON array: modules, reshard, sizes, seconds and bytes at the peak of the steady step.
[[nodiscard]] std::string report_units(const StepPicture&);

// The modules of the model as a JSON array, in pre-order: depth, class, parameters and seconds of all inside, and for
// modules that the plan names their unit, its reshard, their recomputation.
[[nodiscard]] std::string report_modules(const StepPicture&);

struct ReportPage {
  std::string command;               // "simulate": which sections the page has
  std::string title;                 // "llama3-8b on 8 GPUs of dgx-h100"
  std::string verdict;               // one sentence
  std::vector<std::string> details;  // the plan in words, what the numbers stand on; a line each
  std::string command_line;          // what was typed, as a shell reads it back
  std::string version;               // of the program
  std::string answer;                // the brief JSON document; empty: none
  // More documents by name: {"units", report_units(...)}, {"memory_report", to_json_text(...)}.
  std::vector<std::pair<std::string, std::string>> documents;
  std::vector<ReportStep> steps;  // the first one is shown at first
};

// The whole file. Throws InternalError if zlib does.
[[nodiscard]] std::string report_html(const ReportPage&);

}  // namespace fsdp
