// Published runs: measured against predicted, filtered by source, GPU, trust and scale; the worst rows.
"use strict";

const SCALES = [["up to 8 GPUs", 1, 8], ["9 to 64", 9, 64], ["65 to 512", 65, 512], ["more than 512", 513, Infinity]];
const GROUP_COLOURS =
    ["forward", "all-gather", "optimizer", "reduce-scatter", "all-reduce", "recompute", "m-logits", "copy"];

function runsOf(answer, memory) {
  const [measured, predicted] =
      memory ? ["measured_peak_bytes", "predicted_peak_bytes"] : ["measured_step_time_s", "predicted_step_time_s"];
  return answer.rows.filter((r) => r[measured] > 0 && r[predicted] > 0)
      .map((r) => ({...r, measured: r[measured], predicted: r[predicted], error: r[predicted] / r[measured] - 1}));
}

function errorsLine(rows) {
  if (!rows.length) return "No rows.";
  const errors = rows.map((r) => Math.abs(r.error)).sort((a, b) => a - b);
  const mean = errors.reduce((a, b) => a + b, 0) / errors.length;
  const bias = rows.reduce((a, r) => a + r.error, 0) / rows.length;
  return `${commas(rows.length)} rows: mean error ${percent(mean)}, median ${
             percent(errors[Math.floor((errors.length - 1) / 2)])}, ` +
      `90 % below ${percent(errors[Math.floor(0.9 * (errors.length - 1))])}, worst ${
             percent(errors[errors.length - 1])}, on average ${signed(bias)}.`;
}

class RunScatter {
  constructor(choose) {
    this.choose = choose;
    this.box = el("div", {class: "scatter square"});
  }
  draw(rows, memory) {
    const size = isSmall() ? 430 : 620, left = 74, bottom = 40;
    const root = svg(
        "svg", {viewBox: `0 0 ${size} ${size}`, role: "group", "aria-label": "Measured and predicted, logarithmic"});
    if (rows.length) {
      const all = rows.flatMap((r) => [r.measured, r.predicted]);
      const low = Math.log(lowest(all)) - 0.1, high = Math.log(highest(all)) + 0.1;
      const part = (v) => (Math.log(v) - low) / (high - low);
      const x = (v) => left + part(v) * (size - left - 10), y = (v) => size - bottom - part(v) * (size - bottom - 10);
      const format = memory ? bytes : seconds;
      const marks = memory ? powersOfTwo(Math.exp(low), Math.exp(high), 12) :
                             powersOfTen(Math.exp(low), Math.exp(high), high - low < 5);
      for (const v of marks)
        root.append(
            svg("line", {x1: x(v), x2: x(v), y1: 10, y2: size - bottom, class: "grid"}),
            svg("line", {x1: left, x2: size - 10, y1: y(v), y2: y(v), class: "grid"}),
            svg("text", {x: Math.min(x(v), size - 24), y: size - bottom + 16, "text-anchor": "middle"}, format(v)),
            svg("text", {x: left - 6, y: y(v) + 4, "text-anchor": "end"}, format(v)));
      const a = Math.exp(low), b = Math.exp(high);
      const band = [[a, a * 1.1], [b / 1.1, b], [b, b], [b, b / 1.1], [a * 1.1, a], [a, a]]
                       .map(([m, p]) => `${x(m)},${y(p)}`)
                       .join(" ");
      root.append(
          svg("polygon", {points: band, class: "band"}),
          svg("line", {x1: x(a), y1: y(a), x2: x(b), y2: y(b), class: "front"}));
      for (const r of rows) {
        const dot = svg("circle", {
          cx: x(r.measured),
          cy: y(r.predicted),
          r: 4,
          class: "run",
          style: `--colour: var(--${this.colourOf(r.gpu)})`
        });
        dot.addEventListener(
            "pointermove",
            (e) => showTip(
                e, `row ${r.id}: ${r.model} on ${r.gpus} x ${r.gpu}`,
                `measured ${format(r.measured)}, predicted ${format(r.predicted)}, ${signed(r.error)}`, r.source));
        dot.addEventListener("pointerleave", (e) => showTip(e));
        dot.addEventListener("click", () => this.choose(r));
        root.append(dot);
      }
      root.append(
          svg("text", {x: size - 10, y: size - 6, "text-anchor": "end"}, "measured"),
          svg("text", {x: left + 6, y: 24}, "predicted; band: 10 %"));
    }
    this.box.replaceChildren(root);
  }
  colourOf(gpu) { return GROUP_COLOURS[Math.max(0, this.gpus.indexOf(gpu)) % GROUP_COLOURS.length]; }
}

function showAccuracy(answer) {
  const distinct = (key) => [...new Set(answer.rows.map((r) => r[key]))].sort();
  const choice = (name, values) => {
    const select =
        el("select", {"aria-label": name, onchange: () => draw()}, el("option", {value: ""}, "every " + name),
           ...values.map((v) => el("option", {value: v}, v)));
    return select;
  };
  const source = choice("source", distinct("source")), gpu = choice("GPU", distinct("gpu")),
        trust = choice("trust", distinct("trust")), scale = choice("scale", SCALES.map((s) => s[0]));
  const what =
      el("select", {"aria-label": "What is compared", onchange: () => draw()},
         el("option", {value: "time"}, "step time"), el("option", {value: "memory"}, "peak memory"));
  const line = el("p", {id: "errors", role: "status"}), tables = el("div"), said = el("div", {"aria-live": "polite"});
  const scatter = new RunScatter((r) => {
    said.replaceChildren(
        el("div", {class: "chosen-plan"},
           el("h3", {}, `Row ${r.id}: ${r.model} on ${commas(r.gpus)} x ${r.gpu}, trust ${r.trust}`),
           el("p", {}, r.source + ". Error " + signed(r.error) + "."),
           r.assumptions.length ? el("p", {}, "Assumed: " + r.assumptions.join("; ") + ".") :
                                  el("p", {}, "Nothing was assumed.")));
  });
  scatter.gpus = distinct("gpu");
  const draw = () => {
    const memory = what.value === "memory", format = memory ? bytes : seconds;
    const range = SCALES.find((s) => s[0] === scale.value);
    const rows = runsOf(answer, memory)
                     .filter(
                         (r) => (!source.value || r.source === source.value) && (!gpu.value || r.gpu === gpu.value) &&
                             (!trust.value || r.trust === trust.value) &&
                             (!range || (r.gpus >= range[1] && r.gpus <= range[2])));
    line.textContent = errorsLine(rows);
    scatter.draw(rows, memory);
    const worst = rows.slice().sort((a, b) => Math.abs(b.error) - Math.abs(a.error));
    tables.replaceChildren(sortableTable(
        "Rows, the furthest off first",
        [
          {title: "row", text: (r) => r.id, value: (r) => Number(r.id) || r.id},
          {title: "model", text: (r) => r.model, value: (r) => r.model},
          {title: "GPUs", number: true, text: (r) => `${commas(r.gpus)} x ${r.gpu}`, value: (r) => r.gpus},
          {title: "trust", text: (r) => r.trust, value: (r) => r.trust},
          {title: "measured", number: true, text: (r) => format(r.measured), value: (r) => r.measured},
          {title: "predicted", number: true, text: (r) => format(r.predicted), value: (r) => r.predicted},
          {
            title: "error",
            number: true,
            text: (r) => signed(r.error),
            value: (r) => Math.abs(r.error),
            bar: "reduce-scatter"
          },
          {title: "source", text: (r) => r.source, value: (r) => r.source},
          {title: "assumed", wide: true, text: (r) => r.assumptions.join("; "), value: (r) => r.assumptions.length},
        ],
        worst, {most: 20, onRow: (r) => scatter.choose(r)}));
  };
  section(
      "runs", "Measured and predicted", el("div", {class: "tools"}, what, source, gpu, trust, scale), line,
      el("div", {class: "beside"}, scatter.box, said),
      el("ul", {class: "legend"},
         ...scatter.gpus.map((g) => el("li", {}, el("i", {style: {background: `var(--${scatter.colourOf(g)})`}}), g))),
      tables);
  draw();
  if (answer.skipped && answer.skipped.length)
    section(
        "skipped", "Rows without a prediction", el("p", {}, `${commas(answer.skipped.length)} rows are left out:`),
        el("ul", {},
           ...answer.skipped.map((s) => el("li", {}, typeof s === "string" ? s : Object.values(s).join(": ")))));
}
