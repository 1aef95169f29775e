// The top of the page: the verdict, the numbers that decide, where the step goes, provenance.
"use strict";

// Colours of the parts of a breakdown, by their names in JSON.
const PART_COLOURS = {
  compute_s: "forward",
  recompute_s: "recompute",
  exposed_all_gather_s: "all-gather",
  exposed_reduce_scatter_s: "reduce-scatter",
  exposed_all_reduce_s: "all-reduce",
  copies_s: "copy",
  optimizer_s: "optimizer",
  idle_s: "idle",
};
const partName = (key) => key.replace(/_s$/, "")
                              .replace(/_/g, " ")
                              .replace(/all (gather|reduce)/, "all-$1")
                              .replace("reduce scatter", "reduce-scatter");

function verdictLine(report) {
  const line = document.getElementById("verdict");
  const found = /^(Fits|Tight|Does not fit|Within tolerance|Outside tolerance)/.exec(report.verdict);
  const verdict = found ? found[1].toLowerCase().replace(/ /g, "-") : "";
  line.className = verdict;
  if (!found) {
    line.textContent = report.verdict;
    return;
  }
  line.replaceChildren(
      el("strong", {class: "badge"}, found[1]), report.verdict.slice(found[1].length).replace(/^[:,]? */, ""));
}

function tile(label, value, note) {
  return el("div", {class: "tile"}, el("dt", {}, label), el("dd", {}, value, note ? el("small", {}, note) : null));
}

// What decides: of a prediction as --json prints it.
function predictionTiles(p) {
  const spare = p.memory_limit_bytes - p.peak_total_bytes;
  const tiles = [
    tile("Step", seconds(p.step_time_s), commas(p.tokens_per_step) + " tokens"),
    tile("Throughput", commas(p.tokens_per_s) + " tokens/s", commas(p.tokens_per_s_per_gpu) + " per GPU"),
    p.mfu > 0 ? tile("MFU", percent(p.mfu), p.hfu > p.mfu ? "HFU " + percent(p.hfu) : "") : null,
    tile(
        "Peak memory", bytes(p.peak_total_bytes),
        "of " + bytes(p.memory_limit_bytes) +
            (spare >= 0 ? ", " + bytes(spare) + " to spare" : ", " + bytes(-spare) + " too much")),
    tile(
        "Exposed communication", seconds(p.exposed_communication_s),
        percent(p.exposed_communication_s / p.step_time_s) + " of the step"),
    p.cost ? tile("Cost", digits(p.cost.per_1e9_tokens) + " " + p.cost.currency, "per 10⁹ tokens") : null,
  ];
  return el("dl", {class: "tiles"}, ...tiles);
}

// A bar of named parts, and its legend: [{name, colour, value, text}].
function partsBar(label, parts, format) {
  const whole = parts.reduce((sum, p) => sum + p.value, 0);
  const shown = parts.filter((p) => p.value > 0);
  const bar =
      el("div", {
        class: "parts",
        role: "img",
        "aria-label": label + ": " + shown.map((p) => `${p.name} ${percent(p.value / whole)}`).join(", ")
      },
         ...shown.map((p) => el("span", {
                        title: `${p.name}: ${format(p.value)}, ${percent(p.value / whole)}`,
                        style: {"flex-grow": String((100 * p.value) / whole), background: `var(--${p.colour})`}
                      })));
  const legend =
      el("ul", {class: "legend"},
         ...shown.map(
             (p) =>
                 el("li", {}, el("i", {style: {background: `var(--${p.colour})`}}), p.name + " ",
                    el("b", {}, format(p.value)), el("small", {}, " " + percent(p.value / whole)))));
  return el("div", {}, bar, legend);
}

function whereTheStepGoes(where, title = "Where the step goes") {
  const parts =
      Object.entries(where).map(([key, value]) => ({name: partName(key), colour: PART_COLOURS[key] || "copy", value}));
  return el(
      "div", {}, el("h3", {}, title || "Where the step goes"),
      partsBar(title || "Where the step goes", parts, seconds));
}

function showSummary(report, prediction, measurement) {
  document.title = report.title + " · fsdp-plan";
  document.getElementById("title").textContent = report.title;
  verdictLine(report);
  const s = section(
      "summary", "Summary",
      measurement    ? measurementTiles(measurement, prediction, report.validation) :
          prediction ? predictionTiles(prediction) :
                       null,
      el("div", {class: "details"}, ...report.details.map((line) => el("p", {}, line))),
      prediction ? whereTheStepGoes(prediction.where, measurement && "Where the predicted step goes") : null);
  const where = measurement && measurement.ranks.length && wasMeasured(measurement, report.validation).time &&
      measurement.ranks[0].where;
  if (where) s.append(whereTheStepGoes(where, "Where the measured step of rank 0 goes"));
  s.querySelector("h2").classList.add("quiet");
  if (!prediction && !measurement && !report.details.length) s.hidden = true;
  return s;
}

function copyButton(text) {
  const b = button("Copy", "Copy to the clipboard", async () => {
    try {
      await navigator.clipboard.writeText(text);
      b.textContent = "Copied";
    } catch {  // files opened from disk may not have a clipboard
      const range = document.createRange();
      range.selectNodeContents(b.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      b.textContent = "Selected";
    }
  });
  return b;
}

function showProvenance(report, provenance) {
  const rows = Object.entries(provenance || {})
                   .filter(([, value]) => value !== "")
                   .map(
                       ([key, value]) =>
                           el("tr", {}, el("th", {scope: "row"}, key.replace(/_/g, " ")),
                              el("td", {}, el("code", {}, String(value)))));
  section(
      "provenance", "How to get it again",
      el("p", {class: "command"}, el("code", {}, report.command_line), copyButton(report.command_line)),
      rows.length ? el("div", {class: "scrolls"},
                       el("table", {class: "plain"}, el("caption", {}, "Made from"), el("tbody", {}, ...rows))) :
                    null,
      report.plan ? el("details", {}, el("summary", {}, "The plan as plan.json"),
                       el("pre", {tabindex: "0"}, JSON.stringify(report.plan, null, 2))) :
                    null);
  document.getElementById("footer").textContent =
      `fsdp-plan ${report.version}. This page holds its data and needs no network. ` +
      "Times in charts are rounded to nanoseconds; tables show the values that --json prints.";
}
