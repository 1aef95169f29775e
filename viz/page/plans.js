// Every plan that the search scored, on speed x memory: the front of those that nothing beats in both, the limit, and
// why each lost.
"use strict";

const PLAN_VERDICTS = {
  "fits": "good",
  "tight": "warn",
  "does not fit": "bad"
};

// Plans that no other plan beats in speed and in memory, fastest first.
function paretoFront(plans) {
  const sorted =
      plans.slice().sort((a, b) => b.tokens_per_s - a.tokens_per_s || a.peak_total_bytes - b.peak_total_bytes);
  const front = [];
  for (const p of sorted)
    if (!front.length || p.peak_total_bytes < front[front.length - 1].peak_total_bytes) front.push(p);
  return front;
}

function svg(tag, attributes, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

// A marked place for each plan; both axes are logarithmic where values are far apart.
class PlanScatter {
  constructor(plans, limit, choose) {
    this.plans = plans;
    this.limit = limit;
    this.choose = choose;
    this.box = el("div", {class: "scatter"});
    this.marks = new Map();
    this.draw();
  }
  scale(values, from, to) {
    const low = lowest(values), high = highest(values), log = low > 0 && high > 8 * low;
    const memory = values === this.memories;
    const f = log ? Math.log : (x) => x;
    const room = 0.06 * (f(high) - f(low) || Math.abs(f(high)) || 1);
    const a = Math.max(f(low) - room, log ? -Infinity : 0), b = f(high) + room;
    const place = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
    const marks = !log ? ticks(a, b, isSmall() ? 4 : 6, memory ? 2 : 10) :
        memory         ? powersOfTwo(Math.exp(a), Math.exp(b), 12) :
                         powersOfTen(Math.exp(a), Math.exp(b), true);
    return {place, marks};
  }
  draw() {
    const small = isSmall(), width = small ? 430 : 1000, height = small ? 400 : 380, left = 78, bottom = 44;
    this.memories = this.plans.map((p) => p.peak_total_bytes).concat([this.limit]);
    const x = this.scale(this.plans.map((p) => p.tokens_per_s), left, width - 12);
    const y = this.scale(this.memories, height - bottom, 22);
    const root = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": "Scored plans: tokens per second and peak memory"
    });
    for (const v of x.marks)
      root.append(
          svg("line", {x1: x.place(v), x2: x.place(v), y1: 14, y2: height - bottom, class: "grid"}),
          svg("text", {x: x.place(v), y: height - bottom + 17, "text-anchor": "middle"}, count(v)));
    for (const v of y.marks)
      root.append(
          svg("line", {x1: left, x2: width - 12, y1: y.place(v), y2: y.place(v), class: "grid"}),
          svg("text", {x: left - 8, y: y.place(v) + 4, "text-anchor": "end"}, bytes(v)));
    root.append(
        svg("text", {x: width - 12, y: height - 6, "text-anchor": "end", class: "axis"},
            small ? "tokens/s: faster to the right" : "tokens per second, all GPUs: faster to the right"),
        svg("text", {x: 4, y: 10, class: "axis"}, "peak memory: lower is less"));
    const at = y.place(this.limit);
    root.append(
        svg("line", {x1: left, x2: width - 12, y1: at, y2: at, class: "limit"}),
        svg("text", {x: left + 6, y: at - 5, class: "limit-name"}, "limit, " + bytes(this.limit)));
    const front = paretoFront(this.plans);
    root.append(svg("polyline", {
      class: "front",
      points: front.map((p) => `${x.place(p.tokens_per_s)},${y.place(p.peak_total_bytes)}`).join(" ")
    }));
    for (const p of this.plans) {
      const mark = svg("circle", {
        cx: x.place(p.tokens_per_s),
        cy: y.place(p.peak_total_bytes),
        r: p.chosen ? 8 : 5,
        tabindex: p.chosen ? 0 : -1,
        role: "button",
        class: "plan " + PLAN_VERDICTS[p.verdict] + (p.chosen ? " best" : "") + (front.includes(p) ? " on-front" : ""),
        "aria-label":
            `${p.label}: ${count(p.tokens_per_s)} tokens per second, ${bytes(p.peak_total_bytes)}, ${p.verdict}`
      });
      mark.addEventListener("click", () => this.choose(p));
      mark.addEventListener("keydown", (e) => {
        const by = {ArrowLeft: -1, ArrowRight: 1}[e.key];
        if (by) this.step(p, by);
        else if (e.key === "Enter" || e.key === " ") this.choose(p);
        else return;
        e.preventDefault();
      });
      mark.addEventListener(
          "pointermove",
          (e) => showTip(
              e, p.label,
              `${count(p.tokens_per_s)} tokens/s, step ${seconds(p.step_time_s)}, ${bytes(p.peak_total_bytes)}`,
              p.chosen ? "chosen" : p.why_lost || p.verdict));
      mark.addEventListener("pointerleave", (e) => showTip(e));
      this.marks.set(p, mark);
      root.append(mark);
    }
    this.box.replaceChildren(root);
  }
  // One of them is a stop of the Tab key; from there the arrow keys go on by speed.
  mark(plan) {
    for (const [p, mark] of this.marks) {
      mark.classList.toggle("marked", p === plan);
      mark.setAttribute("tabindex", p === plan ? 0 : -1);
    }
  }
  step(plan, by) {
    const order = this.plans.slice().sort((a, b) => a.tokens_per_s - b.tokens_per_s);
    const next = order[order.indexOf(plan) + by];
    if (!next) return;
    this.choose(next);
    this.marks.get(next).focus();
  }
}

// steps: labels whose timeline the page holds; showStep(k) shows one.
function showPlans(report, limit, showStep) {
  const answer = report.answer, chosen = report.steps[0];
  const plans = answer.scored_plans.map((p) => ({...p, chosen: answer.plan !== null && p.label === chosen}));
  const said = el("div", {class: "chosen-plan", "aria-live": "polite"});
  const choose = (p) => {
    scatter.mark(p);
    const step = report.steps.indexOf(p.label);
    const open = step >= 0 &&
        el("button", {
                   type: "button",
                   onclick: async () => {
                     await showStep(step);
                     document.getElementById("timeline").scrollIntoView();
                   }
                 },
           step === 0 ? "Show its timeline (the chosen plan)" : "Show its timeline");
    said.replaceChildren(
        el("h3", {}, (p.naive ? "naive: " : "") + p.label),
        el("p", {},
           `${count(p.tokens_per_s)} tokens/s, step ${seconds(p.step_time_s)}, peak ${bytes(p.peak_total_bytes)}: ` +
               (p.chosen ? "chosen." : (p.why_lost || p.verdict) + "."),
           " ", open || ""));
  };
  const scatter = new PlanScatter(plans, limit, choose);
  const front = new Set(paretoFront(plans));
  const rows =
      plans.slice().sort((a, b) => b.chosen - a.chosen || ["fits", "tight", "does not fit"].indexOf(a.verdict) - [
        "fits", "tight", "does not fit"
      ].indexOf(b.verdict) || b.tokens_per_s - a.tokens_per_s);
  const table = sortableTable(
      "Scored plans",
      [
        {title: "plan", text: (p) => (p.naive ? "naive: " : "") + p.label, value: (p) => p.label},
        {
          title: "tokens/s",
          number: true,
          text: (p) => commas(p.tokens_per_s),
          value: (p) => p.tokens_per_s,
          bar: "forward"
        },
        {title: "step", number: true, text: (p) => seconds(p.step_time_s), value: (p) => p.step_time_s},
        {
          title: "peak",
          number: true,
          text: (p) => bytes(p.peak_total_bytes),
          value: (p) => p.peak_total_bytes,
          bar: "m-parameters"
        },
        {title: "verdict", text: (p) => p.verdict, value: (p) => ["fits", "tight", "does not fit"].indexOf(p.verdict)},
        {title: "front", text: (p) => (front.has(p) ? "yes" : ""), value: (p) => (front.has(p) ? 1 : 0)},
        {title: "why not", text: (p) => (p.chosen ? "chosen" : p.why_lost), value: (p) => p.why_lost},
      ],
      rows, {most: 20, onRow: choose});
  const remedies = (answer.remedies || []).length ?
      [
        el("h3", {}, "What would help, each simulated"),
        sortableTable(
            "Changes",
            [
              {title: "change", text: (r) => r.change, value: (r) => r.change},
              {title: "verdict", text: (r) => r.verdict, value: (r) => r.verdict},
              {title: "step", number: true, text: (r) => seconds(r.step_time_s), value: (r) => r.step_time_s},
              {title: "peak", number: true, text: (r) => bytes(r.peak_total_bytes), value: (r) => r.peak_total_bytes},
            ],
            answer.remedies)
      ] :
      [];
  section(
      "plans", "Plans",
      el("p", {},
         `${commas(answer.considered)} considered, ${commas(answer.pruned)} ruled out without a simulation, ${
             commas(answer.scored)} scored` +
             (answer.simulated_jointly ? `; from the best of them one choice at a time, ${
                                             commas(answer.simulated_jointly)} more simulated.` :
                                         ".")),
      certificateBox(answer.certificate), scatter.box,
      el("ul", {class: "legend"},
         ...[["good", "fits"], ["warn", "tight"], ["bad", "does not fit"]].map(
             ([c, name]) => el("li", {}, el("i", {style: {background: `var(--${c})`}}), name)),
         el("li", {}, "line: no other plan is faster with less memory")),
      said, ...remedies,
      el("details", {open: plans.length <= 20}, el("summary", {}, plans.length > answer.scored ?
                 `All ${commas(answer.scored)} scored plans and what the further search found` :
                 `All ${commas(plans.length)} scored plans`), table),
      report.steps.length > 1 ? el("p", {class: "hint"},
                                   `This page holds the timelines of ${
                                       report.steps.length} plans: the chosen one and its most instructive rivals.`) :
                                null);
  if (plans.length) choose(plans.find((p) => p.chosen) || rows[0]);
}
