// A step for a document: its timeline and its memory as one SVG, without scripts and without references to anything
// outside, light or dark as the reader has it.
//
//   write_file("step.svg", step_svg({program, plan, model, prediction.timeline}, {.title = "llama3-8b on 8 GPUs"}));
//
// Operations of one unit that follow one another are one rectangle; what is thinner than a pixel is joined.
#pragma once

#include <string>
#include <vector>

#include "models/units.h"
#include "viz/step_picture.h"

namespace fsdp {

struct SvgText {
  std::string title, subtitle;
  struct Line {  // across the memory chart
    std::string name;
    Bytes bytes;
  };
  std::vector<Line> lines = {};
};
[[nodiscard]] std::string step_svg(const StepPicture&, const SvgText&);

}  // namespace fsdp
