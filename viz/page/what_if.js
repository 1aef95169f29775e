// What would change with another bandwidth, another limit of memory, another price. Nothing is guessed here: steps at
// other bandwidths were simulated beforehand (what lies between two simulations is interpolated and marked as such),
// limits are held against the peaks of plans that were simulated, and prices are multiplied.
"use strict";

// Of simulated points [{factor, step_time_s, ...}] at a factor between the first and the last.
function atBandwidth(points, factor) {
  const k = points.findIndex((p) => p.factor >= factor * (1 - 1e-9));
  const to = points[Math.max(k, 0)], from = points[Math.max(k - 1, 0)];
  if (Math.abs(to.factor - factor) <= 1e-9 * factor || from === to) return {...to, simulated: true};
  // Time on a link goes with one over its bandwidth.
  const part = (1 / factor - 1 / from.factor) / (1 / to.factor - 1 / from.factor);
  const between = (key) => from[key] + part * (to[key] - from[key]);
  return {
    factor,
    bytes_per_s: from.bytes_per_s * (factor / from.factor),
    step_time_s: between("step_time_s"),
    exposed_communication_s: between("exposed_communication_s"),
    simulated: false,
    from,
    to
  };
}

// "fits", "does not fit", or null: only a simulation under that limit can say.
function verdictAt(limit, plan, prediction) {
  if (plan.peak_total_bytes <= limit) return "fits";
  const least = prediction && prediction.peak_allocated_bytes + prediction.fixed_bytes;
  return least > limit ? "does not fit" : null;
}

class WhatIf {
  constructor(report, prediction) {
    this.report = report;
    this.prediction = prediction;
    this.ranks = prediction.tokens_per_s / prediction.tokens_per_s_per_gpu;
    const plans = report.answer && report.answer.scored_plans;
    this.plans = (plans || [
                   {
                     label: report.steps[0],
                     step_time_s: prediction.step_time_s,
                     tokens_per_s: prediction.tokens_per_s,
                     peak_total_bytes: prediction.peak_total_bytes,
                     verdict: prediction.verdict
                   }
                 ]).map((p) => ({...p, tokens: p.tokens_per_s * p.step_time_s}));
    this.several = Boolean(plans);
    this.chosen = this.plans.find((p) => p.label === report.steps[0]) || this.plans[0];
    this.sweeps = new Map(report.steps.map((label, k) => [label, report["what_if_" + k]]));
    const sweep = this.sweeps.get(report.steps[0]);
    const points = sweep ? sweep.points : [];
    this.limit = prediction.memory_limit_bytes;
    this.bandwidth = points.length && this.slider("Bandwidth " + sweep.link, {
      min: Math.log2(points[0].factor),
      max: Math.log2(points[points.length - 1].factor),
      step: 0.05,
      value: 0
    });
    this.memory = this.slider("Memory limit", {min: 0.25, max: 2, step: 0.01, value: 1});
    const known = prediction.cost ? prediction.cost.price_per_gpu_hour : 0;
    this.price = this.slider("Price of a GPU hour", {min: 0, max: Math.max(10, 2 * (known || 0)), step: 0.05,
                                                     value: known || 0});
    this.answer = el("dl", {class: "tiles", id: "what-if-answer"});
    this.said = el("p", {class: "reading", role: "status"});
    this.draw();
  }
  slider(label, attributes) {
    const output = el("output");
    const input = el("input", {type: "range", "aria-label": label, ...attributes, oninput: () => this.draw()});
    return {input, output, box: el("label", {class: "slider"}, el("span", {}, label), input, output)};
  }
  // Of all scored plans the fastest that fits; of one plan that one.
  planAt(limit) {
    if (!this.several || limit === this.limit) return this.chosen;
    const fitting = this.plans.filter((p) => p.peak_total_bytes <= limit);
    return fitting.reduce((best, p) => (best && best.tokens_per_s >= p.tokens_per_s ? best : p), null);
  }
  draw() {
    const part = Number(this.memory.input.value), limit = part === 1 ? this.limit : Math.round(part * this.limit);
    const factor = this.bandwidth ? 2 ** Number(this.bandwidth.input.value) : 1;
    const price = Number(this.price.input.value), plan = this.planAt(limit);
    this.memory.output.textContent = bytes(limit);
    this.price.output.textContent =
        price ? digits(price) + " " + (this.prediction.cost ? this.prediction.cost.currency : "") : "none";
    const sweep = plan && this.sweeps.get(plan.label), points = sweep ? sweep.points : [];
    if (this.bandwidth) {
      const base = this.sweeps.get(this.report.steps[0]).points.find((p) => p.factor === 1);
      this.bandwidth.output.textContent = `${digits(factor)} x: ${digits((factor * base.bytes_per_s) / 1e9)} GB/s`;
    }
    if (!plan) {
      const least = this.plans.reduce((a, b) => (a.peak_total_bytes < b.peak_total_bytes ? a : b));
      this.answer.replaceChildren();
      this.said.textContent = `None of the ${commas(this.plans.length)} scored plans fits: the least needs ${
          bytes(least.peak_total_bytes)}. A search under this limit tries others.`;
      return;
    }
    const at = factor !== 1 && points.length ? atBandwidth(points, factor) : null;
    const step = at ? at.step_time_s : plan.step_time_s, tokens = plan.tokens / step;
    const verdict = limit === this.limit ? plan.verdict :
                                           verdictAt(limit, plan, this.several ? null : this.prediction);
    const p = this.prediction;
    this.answer.replaceChildren(
        tile("Step", seconds(step), at ? (at.simulated ? "simulated" : "between two simulations") : "simulated"),
        tile("Throughput", commas(tokens) + " tokens/s", signed(tokens / p.tokens_per_s - 1)),
        tile("Peak memory", bytes(plan.peak_total_bytes), `${verdict || "not known"} at ${bytes(limit)}`),
        ...(price ? [tile(
                        "Cost", digits(((price / 3600) * this.ranks * 1e9) / tokens) +
                            (p.cost ? " " + p.cost.currency : ""),
                        "per 10⁹ tokens")] :
                    []));
    const lines = [];
    if (this.several) lines.push(plan === this.chosen ? "The chosen plan." : `Another plan: ${plan.label}.`);
    if (at && !at.simulated)
      lines.push(`Simulated at ${digits(at.from.factor)} x (${seconds(at.from.step_time_s)}) and ${
          digits(at.to.factor)} x (${seconds(at.to.step_time_s)}); interpolated in between.`);
    if (factor !== 1 && !points.length)
      lines.push("This plan was simulated with the cluster's own bandwidth alone, which is shown.");
    if (verdict === null)
      lines.push("Whether the allocator gets by with less than it would reserve was not simulated at this limit: " +
                 "give --memory-limit.");
    this.said.textContent = lines.join(" ") || "As predicted.";
  }
}

function showWhatIf(report, prediction) {
  if (!prediction.tokens_per_s || !report.steps.length || !report.what_if_0) return;
  const w = new WhatIf(report, prediction), grid = report.what_if_0.points.map((p) => String(p.factor)).join(", ");
  const reset = button("As predicted", "Put the sliders back", () => {
    for (const s of [w.bandwidth, w.memory, w.price])
      if (s) s.input.value = s.input.defaultValue;
    w.draw();
  });
  section(
      "what-if", "What if",
      el("div", {class: "sliders"}, ...[w.bandwidth, w.memory, w.price].filter(Boolean).map((s) => s.box)),
      el("div", {class: "tools"}, reset), w.answer, w.said,
      el("p", {class: "hint"},
         (grid ? `Simulated beforehand at ${grid} times the bandwidth ${report.what_if_0.link}; what lies between ` +
                     "two of these is interpolated, as the time that a byte takes, and marked as such. " :
                 "") +
             (w.several ? `A limit chooses among the ${commas(w.plans.length)} scored plans; those that the search ` +
                          "ruled out without a simulation are not among them. " :
                          "") +
             "Prices are multiplied."));
}
