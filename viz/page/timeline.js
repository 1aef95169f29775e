// The timeline: a lane per stream and one for the host, the communication that nothing hides, the waits of the chosen
// operation, on one canvas.
"use strict";

const AXIS = 22, GAP = 5;
const LANE_HEIGHTS = {
  compute: 40,
  copy_in: 16,
  all_gather: 28,
  reduce_scatter: 28,
  all_reduce: 22
};

class TimelineChart {
  constructor(view) {
    this.view = view;
    this.showWaits = false;
    this.canvas = el("canvas", {
      class: "chart",
      tabindex: "0",
      role: "application",
      "aria-label":
          "Timeline of the step. Arrow keys move, plus and minus zoom, 0 shows the whole step, N and P choose " +
          "the next and " +
          "the previous operation of a lane, C lights the critical path."
    });
    this.labels = el("div", {class: "lane-names", "aria-hidden": "true"});
    this.box = el("div", {class: "lanes"}, this.labels, this.canvas);
    this.lane = 0;
    gestures(this.canvas, view, {
      hover: (at, place, event) => this.hover(at, place, event),
      click: (at, place) => {
        view.choose(this.find(at, place.y));
        this.canvas.focus({preventScroll: true});
      },
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    view.listen(() => this.draw());
    this.show();
  }

  show() {
    const step = this.view.step;
    this.lanes = [];
    if (step.exposedStart.length) this.lanes.push({name: "exposed", height: 8, exposed: true});
    for (const [k, name] of step.columns.lanes.entries())
      if (name !== "host" && step.lanes[k].length) this.lanes.push(Lane.ofStream(step, k, LANE_HEIGHTS[name] || 22));
    if (step.hostAhead)
      this.lanes.push({
        name: "host",
        height: 14,
        exposed: true,
        said: `issued all of this step in ${time(step.hostEnd - step.hostBegin)}, and was through ${
            time(-step.hostEnd)} before it began`,
        short: `through ${time(-step.hostEnd)} before the step began`
      });
    else if (step.issued) this.lanes.push(Lane.ofHost(step, 14));
    let y = AXIS;
    for (const lane of this.lanes) {
      lane.top = y;
      y += lane.height + GAP;
    }
    this.height = y;
    this.canvas.style.height = this.box.style.minHeight = y + "px";
    this.labels.replaceChildren(...this.lanes.map(
        (lane) => el("span", {style: {top: lane.top + "px", height: lane.height + "px"}}, lane.name)));
    this.lane = this.lanes.findIndex((l) => !l.exposed);
  }

  laneAt(y) { return this.lanes.find((l) => y >= l.top - 2 && y < l.top + l.height + GAP - 2); }
  find(at, y) {
    const lane = this.laneAt(y);
    if (!lane || lane.exposed) return null;
    this.lane = this.lanes.indexOf(lane);
    return lane.find(at, (3 * (this.view.to - this.view.from)) / this.canvas.clientWidth);
  }

  hover(at, place, event) {
    const view = this.view;
    if (at === null) {
      showTip(event);
      return;
    }
    view.point(at);
    const lane = this.laneAt(place.y);
    if (lane && lane.exposed) {
      const found = !lane.said && this.exposedAt(at);
      if (found) showTip(event, found.name, time(found.length) + " in which the compute stream does not compute");
      else showTip(event);
      return;
    }
    const i = this.find(at, place.y);
    if (i === null) showTip(event);
    else showTip(event, ...shortDescription(view.step, i));
  }
  exposedAt(at) {
    const c = this.view.step.columns, k = firstAbove(this.view.step.exposedStart, at) - 1;
    if (k < 0 || at > this.view.step.exposedStart[k] + c.exposed_ns[k]) return null;
    return {name: c.parts[c.exposed_part[k]], length: c.exposed_ns[k]};
  }

  key(event) {
    const v = this.view, step = (event.shiftKey ? 0.5 : 0.1);
    const actions = {
      ArrowLeft: () => v.pan(-step),
      ArrowRight: () => v.pan(step),
      a: () => v.pan(-step),
      d: () => v.pan(step),
      "+": () => v.zoom(0.7, v.cursor ?? undefined),
      "=": () => v.zoom(0.7, v.cursor ?? undefined),
      w: () => v.zoom(0.7, v.cursor ?? undefined),
      "-": () => v.zoom(1 / 0.7),
      s: () => v.zoom(1 / 0.7),
      0: () => v.whole(),
      Home: () => v.whole(),
      n: () => this.next(1),
      p: () => this.next(-1),
      c: () => this.lightCritical(),
      Escape: () => {
        v.choose(null);
        v.light("", null);
      },
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }
  // The next operation of the lane of the chosen one.
  next(by) {
    const lane = this.lanes[this.lane], v = this.view;
    if (!lane || !lane.count) return;
    const now = v.chosen === null ? -1 : lane.operation.indexOf(v.chosen);
    const first = lane.range(v.from, v.to)[0];
    const k = now < 0 ? Math.min(first, lane.count - 1) : Math.min(lane.count - 1, Math.max(0, now + by));
    v.choose(lane.operation[k]);
  }
  lightCritical() {
    const v = this.view, on = v.litName !== "critical path";
    v.light("critical path", on ? (i) => v.step.critical[i] : null);
  }

  draw() {
    const view = this.view, {context, width} = fitted(this.canvas);
    if (width < 2) return;
    const scale = width / (view.to - view.from);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.axis(context, width, scale);
    for (const lane of this.lanes) {
      if (lane.said) {
        context.fillStyle = colours.css("quiet");
        context.fillText(width < 480 ? lane.short : lane.said, 4, lane.top + lane.height / 2);
      } else if (lane.exposed) this.drawExposed(context, lane, width, scale);
      else lane.draw(context, view, width);
    }
    if (view.chosen !== null && this.showWaits) this.drawWaits(context, scale);
    drawCursor(context, view, width, this.height);
  }

  axis(context, width, scale) {
    const view = this.view;
    drawTicks(context, view, width, 9, AXIS - 4, this.height);
    // The step's own period: from its end back.
    const begin = (view.step.high - view.step.period - view.from) * scale;
    if (begin > 0) {
      context.fillStyle = colours.css("shade");
      context.fillRect(0, AXIS - 4, Math.min(begin, width), this.height);
    }
  }

  drawExposed(context, lane, width, scale) {
    const view = this.view, s = view.step, c = s.columns;
    const names = ["forward", "recompute", "all-gather", "reduce-scatter", "all-reduce", "copy", "optimizer", "idle"];
    let drawn = -1;
    for (let k = Math.max(0, firstAbove(s.exposedStart, view.from) - 1); k < s.exposedStart.length; ++k) {
      if (s.exposedStart[k] > view.to) break;
      const x = (s.exposedStart[k] - view.from) * scale, w = Math.max(1, c.exposed_ns[k] * scale);
      if (x + w < drawn + 1) continue;  // in the same pixel
      context.fillStyle = colours.css(names[c.exposed_part[k]]);
      context.fillRect(Math.max(x, drawn), lane.top, x + w - Math.max(x, drawn), lane.height);
      drawn = x + w;
    }
  }

  // Arrows to the chosen operation from what it waits for, and from it to what waits for it.
  drawWaits(context, scale) {
    const view = this.view, step = view.step;
    const place = (i) => {
      const lane = this.lanes.find(
          (l) => !l.exposed && l.name !== "host" && l.operation && step.lane[l.operation[0]] === step.lane[i]);
      return lane && {
        lane,
        left: (step.start[i] - view.from) * scale,
        right: (step.end[i] - view.from) * scale,
        y: lane.top + lane.height / 2
      };
    };
    const arrow = (from, to, colour) => {
      const a = place(from), b = place(to);
      if (!a || !b) return;
      context.strokeStyle = context.fillStyle = colours.css(colour);
      context.lineWidth = 1.5;
      const bend = Math.max(14, Math.abs(b.left - a.right) / 2);
      context.beginPath();
      context.moveTo(a.right, a.y);
      context.bezierCurveTo(a.right + bend, a.y, b.left - bend, b.y, b.left, b.y);
      context.stroke();
      context.beginPath();
      context.moveTo(b.left + 1, b.y);
      context.lineTo(b.left - 6, b.y - 4);
      context.lineTo(b.left - 6, b.y + 4);
      context.fill();
    };
    for (const w of step.waits(view.chosen)) arrow(w, view.chosen, "cursor");
    for (const d of step.delayed(view.chosen).slice(0, 50)) arrow(view.chosen, d, "quiet");
  }
}

// The operations that differ most between two steps of the same operations: together four fifths of all difference.
function mostDifferent(a, b) {
  const by = Float64Array.from(a.start, (s, i) => Math.abs(a.end[i] - s - (b.end[i] - b.start[i])));
  const order = Array.from(by.keys()).sort((i, j) => by[j] - by[i]);
  const all = by.reduce((x, y) => x + y, 0), lit = new Uint8Array(a.count);
  let sum = 0, count = 0;
  for (const i of order) {
    if (sum >= 0.8 * all || by[i] === 0) break;
    sum += by[i];
    lit[i] = 1;
    ++count;
  }
  return {lit, count, sum};
}

function legendOfKinds(step) {
  const present = new Set(step.columns.label_kind);
  return el(
      "ul", {class: "legend"},
      ...step.columns.kinds.map(
          (name, k) => present.has(k) && name !== "host" ?
              el("li", {}, el("i", {style: {background: `var(--${name})`}}), name) :
              null));
}

// A second timeline below the first, whose range and cursor are the first one's.
function addTimeline(chart, view, title) {
  const below = new TimelineChart(view);
  const first = chart.view;
  const join = () => {
    first.low = view.low = Math.min(first.low, view.low);
    first.high = view.high = Math.max(first.high, view.high);
    first.whole();
  };
  join();
  const follow = (from, to) => {
    if (to.from === from.from && to.to === from.to && to.cursor === from.cursor) return;
    to.from = from.from;
    to.to = from.to;
    to.cursor = from.cursor;
    to.changed();
  };
  first.listen(() => follow(first, view));
  view.listen(() => follow(view, first));
  chart.box.before(el("h3", {}, first.step.name));
  chart.box.after(el("h3", {}, title), below.box);
  below.element = chart.element;
  below.refresh = () => {
    below.show();
    join();
  };
  addDifferences(chart, first, view);
  return below;
}

// A button that lights, in both, what takes another time than predicted.
function addDifferences(chart, first, second) {
  const b = button("Differences", "Light the operations that take another time than predicted", () => show(!on));
  let on = false;
  const show = (light) => {
    first.step.other = second.step;
    second.step.other = first.step;
    first.step.predicted = true;
    const found = mostDifferent(first.step, second.step);
    const name = `${commas(found.count)} operations with four fifths of the difference, ${time(found.sum)}`;
    for (const v of [first, second]) v.light(name, light && found.count ? (i) => found.lit[i] : null);
  };
  first.listen(() => {
    on = first.litName.includes("of the difference");
    b.setAttribute("aria-pressed", on);
  });
  chart.differences = () => show(on);
  chart.element.querySelector(".tools").insertBefore(b, chart.element.querySelector(".tools input"));
  show(true);
}

function showTimeline(view) {
  const chart = new TimelineChart(view);
  const lit = el("span", {class: "lit", role: "status"});
  const critical = button(
      "Critical path", "Light the chain of operations that decides when the step ends (C)",
      () => chart.lightCritical());
  const waits = button("Waits", "Arrows from what the chosen operation waits for, and to what waits for it", () => {
    chart.showWaits = !chart.showWaits;
    waits.setAttribute("aria-pressed", chart.showWaits);
    view.changed();
  });
  const search = el("input", {
    type: "search",
    placeholder: "Light operations: layers.3, all_gather",
    "aria-label": "Light operations by name",
    oninput: () => lightByName(view, search.value)
  });
  critical.hidden = !view.step.columns.critical_d.length;
  waits.hidden = !view.step.waitFor.length;
  let said = null;
  view.listen(() => {
    if (said === view.litName) return;
    said = view.litName;
    critical.setAttribute("aria-pressed", said === "critical path");
    lit.textContent = said ? "lit: " + said : "";
  });
  const legend = el("div", {}, legendOfKinds(view.step));
  const s = section(
      "timeline", "Timeline",
      el("div", {class: "tools"}, button("−", "Zoom out (-)", () => view.zoom(1 / 0.6)),
         button("+", "Zoom in (+)", () => view.zoom(0.6, view.cursor ?? undefined)),
         button("Whole step", "Show the whole step (0)", () => view.whole()), critical, waits, search, lit),
      chart.box, legend,
      el("p", {class: "hint"},
         "Drag to move, Ctrl + wheel or pinch to zoom (the wheel alone after a click), double click to zoom in. " +
             "Click an operation for its demand and what it waited for. Shaded: before the step's own period, " +
             "when the step before still ran."));
  chart.element = s;
  chart.refresh = () => {
    chart.show();
    legend.replaceChildren(legendOfKinds(view.step));
  };
  return chart;
}

function lightByName(view, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    view.light("", null);
    return;
  }
  const labels = view.step.columns.label_text.map((l) => {
    const t = l.toLowerCase();
    return words.every((w) => t.includes(w));
  });
  let count = 0;
  for (let i = 0; i < view.step.count; ++i)
    if (labels[view.step.label[i]]) ++count;
  view.light(`${commas(count)} operations with "${text.trim()}"`, (i) => labels[view.step.label[i]]);
}
