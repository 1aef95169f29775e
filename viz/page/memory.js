// Memory over the step, stacked by what it is for, below the timeline and with the same cursor.
"use strict";

const MEMORY_COLOURS = [
  "m-parameters", "m-optimizer", "m-sharded-gradients", "m-gathered", "m-gather-buffers", "m-gradients", "m-reduce",
  "m-activations", "m-activation-gradients", "m-logits", "m-temporaries", "m-other"
];
const BLOCK = 128;

class MemoryChart {
  constructor(view, limits) {
    this.view = view;
    this.limits = limits;  // [{bytes, name, colour}]: lines across the chart
    this.canvas = el(
        "canvas", {class: "chart memory", tabindex: "0", role: "img", "aria-label": "Allocated memory over the step"});
    this.labels = el("div", {class: "lane-names", "aria-hidden": "true"});
    this.axis = el("canvas", {class: "axis", "aria-hidden": "true"});
    this.box = el("div", {class: "lanes"}, this.labels, this.canvas, el("div"), this.axis);
    this.first = view.step.name;  // whose numbers the text around the chart holds
    this.legend = el("ul", {class: "legend memory-legend"});
    this.reading = el("p", {class: "reading", role: "status"});
    gestures(this.canvas, view, {
      hover: (at, place, event) => {
        if (at === null) {
          showTip(event);
          return;
        }
        view.point(at);
        const row = this.rowAt(at);
        showTip(event, bytes(this.memory.total[row]) + " allocated", "at " + moment(at), ...this.largest(row));
      },
      click: (at) => {
        view.point(at);
        this.canvas.focus({preventScroll: true});
      },
    });
    this.canvas.addEventListener("keydown", (event) => {
      const actions = {
        ArrowLeft: () => view.pan(-0.1),
        ArrowRight: () => view.pan(0.1),
        "+": () => view.zoom(0.7),
        "-": () => view.zoom(1 / 0.7),
        0: () => view.whole()
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      actions[event.key]();
    });
    view.listen(() => this.draw());
    this.show();
  }
  show() {
    this.memory = new MemoryOfStep(this.view.step);
    this.times = this.memory.byDevice;
    this.byHost = false;
    const m = this.memory, blocks = Math.ceil(m.rows / BLOCK);
    this.highest = new Int32Array(blocks);  // row of the largest total of each block
    for (let b = 0; b < blocks; ++b) {
      let best = b * BLOCK;
      for (let r = best + 1; r < Math.min(m.rows, (b + 1) * BLOCK); ++r)
        if (m.total[r] > m.total[best]) best = r;
      this.highest[b] = best;
    }
    this.used = m.parts.map((_, k) => k).filter((k) => {
      for (let r = 0; r < m.rows; ++r)
        if (m.stack[r * m.parts.length + k] > 0) return true;
      return false;
    });
    this.entries = this.used.slice().reverse().map((k) => {
      const value = el("b");
      return [
        k, el("li", {}, el("i", {style: {background: `var(--${MEMORY_COLOURS[k]})`}}), m.parts[k] + " ", value), value
      ];
    });
    this.legend.replaceChildren(...this.entries.map(([, item]) => item));
    const own = this.view.step.name === this.first;
    this.shownLimits = own ? this.limits :
                             this.limits.filter((l) => l.rivals).map((l) => ({...l, name: l.rivals}));
    this.top = 1.06 *
        Math.max(
            m.total[m.peakRow], 1,
            ...this.shownLimits.map((l) => l.bytes).filter((b) => b < 1.6 * m.total[m.peakRow]));
  }
  placeBy(host) {
    this.byHost = host;
    this.times = host && this.memory.byHost ? this.memory.byHost : this.memory.byDevice;
    this.view.changed();
  }
  rowAt(at) { return Math.max(0, firstAbove(this.times, at) - 1); }
  // The row with the most bytes in [from, to).
  highestIn(from, to) {
    const total = this.memory.total;
    let best = from;
    for (let r = from + 1; r < to;) {
      if (r % BLOCK === 0 && r + BLOCK <= to) {
        const h = this.highest[r / BLOCK];
        if (total[h] > total[best]) best = h;
        r += BLOCK;
      } else {
        if (total[r] > total[best]) best = r;
        ++r;
      }
    }
    return best;
  }
  largest(row) {
    const stack = this.memory.at(row);
    return this.used.slice()
        .sort((a, b) => stack[b] - stack[a])
        .slice(0, 4)
        .filter((k) => stack[k] > 0)
        .map((k) => `${this.memory.parts[k]}: ${bytes(stack[k])}`);
  }

  draw() {
    const {context, width, height, ratio} = fitted(this.canvas);
    if (width < 2) return;
    this.drawStack(context, Math.round(width * ratio), Math.round(height * ratio));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const marks = ticks(0, this.top, 6, 2).slice(1);
    for (const b of marks) {
      context.fillStyle = colours.css("grid");
      context.fillRect(0, Math.round(height - (b / this.top) * height), width, 1);
    }
    if (this.labelled !== this.top + height)
      this.labels.replaceChildren(...marks.map(
          (b) => el("span", {style: {top: height - (b / this.top) * height - 8 + "px", height: "16px"}}, bytes(b))));
    this.labelled = this.top + height;
    let last = -100;
    for (const l of this.shownLimits.slice().sort((a, b) => b.bytes - a.bytes)) {
      if (l.bytes > this.top) continue;
      const y = height - (l.bytes / this.top) * height;
      context.strokeStyle = context.fillStyle = colours.css(l.colour);
      context.setLineDash([5, 4]);
      context.beginPath();
      context.moveTo(0, y);
      context.lineTo(width, y);
      context.stroke();
      context.setLineDash([]);
      const below = Math.max(y < 14 ? y + 8 : y - 7, last + 14);
      const name = width < 480 ? l.short : l.name;
      this.caption(context, name + ", " + bytes(l.bytes), width, below, l.colour);
      last = below;
    }
    if (this.memory.measured) this.drawMeasured(context, width, height);
    drawCursor(context, this.view, width, height);
    const axis = fitted(this.axis);
    axis.context.font = "11px system-ui, sans-serif";
    axis.context.textBaseline = "middle";
    drawTicks(axis.context, this.view, width, 9, 0, 4);
    this.readings();
  }
  drawMeasured(context, width, height) {
    const view = this.view, counted = this.memory.measured, scale = (view.to - view.from) / width;
    context.strokeStyle = colours.css("cursor");
    context.beginPath();
    let next = firstAbove(this.times, view.from);
    for (let x = 0; x < width; ++x) {
      const from = Math.max(0, next - 1);
      next = firstAbove(this.times, view.from + (x + 1) * scale, next);
      const y = height - (counted[this.highestIn(from, Math.max(next, from + 1))] / this.top) * height;
      if (x === 0) context.moveTo(x, y);
      else context.lineTo(x, y);
    }
    context.stroke();
  }
  caption(context, text, width, y, colour) {
    const w = context.measureText(text).width;
    context.fillStyle = colours.css("card", 0.8);
    context.fillRect(width - w - 8, y - 7, w + 6, 14);
    context.fillStyle = colours.css(colour);
    context.fillText(text, width - w - 5, y);
  }
  // Per pixel column the highest moment in it, as it stands there.
  drawStack(context, width, height) {
    const view = this.view, m = this.memory, parts = m.parts.length;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.edges = new Int32Array(width * MEMORY_COLOURS.length);
      this.layer = new Uint8Array(width);
    }
    const pixels = this.pixels, edges = this.edges, layers = this.used.length;
    const little = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
    const packed = this.used.map((part) => {
      const [r, g, b] = colours.get(MEMORY_COLOURS[part]);
      return little ? (255 << 24 | b << 16 | g << 8 | r) >>> 0 : (r << 24 | g << 16 | b << 8 | 255) >>> 0;
    });
    const scale = (view.to - view.from) / width;
    let next = firstAbove(this.times, view.from);
    edges.fill(0);
    for (let x = 0; x < width; ++x) {
      const to = view.from + (x + 1) * scale, from = Math.max(0, next - 1);
      next = firstAbove(this.times, to, next);
      if (view.from + x * scale < view.step.low) continue;
      const row = this.highestIn(from, Math.max(next, from + 1)) * parts;
      for (let k = 0, sum = 0; k < layers; ++k) {
        sum += m.stack[row + this.used[k]];
        edges[k * width + x] = Math.round((sum / this.top) * height);
      }
    }
    // Row by row from below: writes in the order of memory.
    this.layer.fill(0);
    for (let y = 0; y < height; ++y) {
      const line = (height - 1 - y) * width;
      for (let x = 0; x < width; ++x) {
        let k = this.layer[x];
        while (k < layers && edges[k * width + x] <= y) ++k;
        this.layer[x] = k;
        pixels[line + x] = k < layers ? packed[k] : 0;
      }
    }
    context.putImageData(this.image, 0, 0);
  }
  readings() {
    const view = this.view, m = this.memory;
    const row = view.cursor === null ? m.peakRow : this.rowAt(view.cursor), stack = m.at(row);
    const said = view.cursor === null ?
        `Highest in this step: ${bytes(m.total[row])} allocated, at ${view.step.text(m.operation(row))}` :
        `At ${moment(view.cursor)}: ${bytes(m.total[row])} allocated, ${view.step.text(m.operation(row))}`;
    if (this.reading.textContent !== said) this.reading.textContent = said;
    this.entries.forEach(([k, item, value]) => {
      item.className = stack[k] ? "" : "none";
      const text = bytes(stack[k]);
      if (value.textContent !== text) value.textContent = text;
    });
  }
}

// What the peak is made of, phase by phase, and the largest buffers there: `simulate --memory --json`.
function memoryTables(report) {
  if (!report || !report.moments.length) return null;
  const names = [...new Set(report.moments.flatMap((m) => Object.keys(m.parts_bytes)))];
  const phases = sortableTable(
      "The peak of each phase, in allocated bytes",
      [
        {title: "phase", text: (m) => m.phase + (m.phase === report.peak ? " (highest)" : ""), value: (m) => m.phase},
        {
          title: "allocated",
          number: true,
          text: (m) => bytes(m.allocated_bytes),
          value: (m) => m.allocated_bytes,
          bar: "m-parameters"
        },
        ...names.map((n) => ({
                       title: n,
                       number: true,
                       text: (m) => (m.parts_bytes[n] ? bytes(m.parts_bytes[n]) : ""),
                       value: (m) => m.parts_bytes[n] || 0
                     })),
        {title: "at", text: (m) => m.at, value: (m) => m.at},
      ],
      report.moments);
  const items = sortableTable(
      "Largest buffers at the highest peak",
      [
        {title: "what", text: (i) => i.what, value: (i) => i.what},
        {title: "buffers", number: true, text: (i) => commas(i.count), value: (i) => i.count},
        {title: "bytes", number: true, text: (i) => bytes(i.bytes), value: (i) => i.bytes, bar: "m-activations"},
      ],
      report.items_at_peak, {most: 12});
  return [phases, items];
}

// Of a step without a prediction's limits: what the allocator counted is drawn over what the program says.
function showMeasuredMemory(view, measurement, memoryReport) {
  const rank = measurement.ranks[0];
  const chart = new MemoryChart(
      view, [{bytes: rank.peak_allocated_bytes, name: "peak of the run, by the allocator", short: "peak",
              colour: "limit"}]);
  const m = chart.memory, counted = m.measured;
  let most = 0;
  for (let r = 0; r < m.rows; ++r) most = Math.max(most, Math.abs(counted[r] - m.total[r]));
  const tables = memoryTables(memoryReport);
  chart.element = section(
      "memory", "Memory", chart.box, chart.reading, chart.legend,
      el("p", {id: "counted"},
         most === 0 ? "What the allocator counted is what the program says, at every operation of the step." :
                      `What the allocator counted (line) differs from what the program says by up to ${bytes(most)}.`),
      el("p", {class: "hint"},
         (m.parts.length > 1 ? "Stacked: buffers of the program, rank 0, in a steady step. " :
                               "Area: what was predicted of a steady step. ") +
             "Line: bytes that the allocator counted."),
      tables ? el("details", {}, el("summary", {}, "Who holds the peak"), ...tables) : null);
  chart.refresh = () => {
    chart.show();
    view.changed();
  };
  return chart;
}

function showMemory(view, prediction, memoryReport) {
  const fixed = prediction.fixed_bytes, limits = [
    {
      bytes: prediction.memory_limit_bytes - fixed,
      name: fixed ? `limit less ${bytes(fixed)} of context and communicators` : "limit",
      rivals: fixed ? `limit less ${bytes(fixed)} of context and communicators of the chosen plan` : "limit",
      short: "limit",
      colour: "limit"
    },
    {bytes: prediction.peak_reserved_bytes, name: "reserved at most", short: "reserved", colour: "reserved"},
  ];
  const chart = new MemoryChart(view, limits);
  const host = chart.memory.byHost && !view.step.hostAhead &&
      button("As the host issues",
             "Place memory where the host allocates and frees, not where the compute stream gets there", () => {
               chart.placeBy(!chart.byHost);
               host.setAttribute("aria-pressed", chart.byHost);
             });
  const peak = button("Go to the peak", "Zoom to the highest moment", () => {
    const at = chart.times[chart.memory.peakRow];
    const length = Math.min(view.to - view.from, view.step.period / 12);
    view.set(at - length / 2, at + length / 2);
    view.point(at);
  });
  const p = prediction;
  const another = el("p", {class: "another", hidden: true});
  const numbers =
      el("p", {},
         `Peaks of the whole run: allocated ${bytes(p.peak_allocated_bytes)}, active ${bytes(p.peak_active_bytes)}, ` +
             `reserved ${bytes(p.peak_reserved_bytes)}, in all ${bytes(p.peak_total_bytes)} of ${
                 bytes(p.memory_limit_bytes)}. The peak is at: ${p.peak_at}.`);
  const s = section(
      "memory", "Memory", el("div", {class: "tools"}, peak, host), chart.box, chart.reading, chart.legend, another,
      numbers,
      el("p", {class: "hint"},
         "Allocated bytes of rank 0 in a steady step. Memory changes where the host issues an operation; it " +
         "is drawn where the compute stream " +
             "starts the next operation that the host issued."),
      el("details", {open: true}, el("summary", {}, "Who holds the peak"), ...(memoryTables(memoryReport) || [])));
  chart.element = s;
  chart.refresh = () => {
    another.hidden = view.step.name === chart.first;
    another.textContent = `The chart shows ${view.step.name}. What follows is of the chosen plan.`;
    chart.show();
    view.changed();
  };
  return chart;
}
