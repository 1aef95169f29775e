// One lane of the timeline: what is drawn where, with many operations in one pixel or one over many.
"use strict";

// Spans sorted by start that do not overlap; `operation` says whose they are.
class Lane {
  constructor(name, height, start, end, operation, step) {
    Object.assign(this, {name, height, start, end, operation, step, top: 0, litOf: undefined});
    this.count = start.length;
  }
  static ofStream(step, index, height) {
    const ops = Int32Array.from(step.lanes[index]).sort((a, b) => step.start[a] - step.start[b] || a - b);
    return new Lane(
        step.columns.lanes[index].replace(/_/g, "-").replace("copy-in", "copy in"), height,
        Float64Array.from(ops, (i) => step.start[i]), Float64Array.from(ops, (i) => step.end[i]), ops, step);
  }
  // When the host issues each operation.
  static ofHost(step, height) {
    const ops = Int32Array.from({length: step.count}, (_, i) => i);
    const start = new Float64Array(step.count), end = new Float64Array(step.count);
    for (let i = 0; i < step.count; ++i) {
      end[i] = step.issued[i];
      start[i] = Math.max(i ? end[i - 1] : -Infinity, step.issued[i] - step.hostTime(i));
    }
    return new Lane("host", height, start, end, ops, step);
  }

  // Sums over the spans before each one, by kind: of those that are lit, and of all.
  prepare(lit) {
    if (this.litOf === lit) return;
    this.litOf = lit;
    const kinds = KIND_COLOURS.length, n = this.count;
    this.present = [];
    for (let i = 0; i < n; ++i) {
      const k = this.step.kind[this.operation[i]];
      if (!this.present.includes(k)) this.present.push(k);
    }
    this.bright = Array.from({length: kinds}, (_, k) => (this.present.includes(k) ? new Float64Array(n + 1) : null));
    this.dim = lit ? new Float64Array(n + 1) : null;
    for (let i = 0; i < n; ++i) {
      const kind = this.step.kind[this.operation[i]], length = this.end[i] - this.start[i];
      const on = !lit || lit[this.operation[i]];
      for (const k of this.present) this.bright[k][i + 1] = this.bright[k][i] + (on && k === kind ? length : 0);
      if (lit) this.dim[i + 1] = this.dim[i] + (on ? 0 : length);
    }
  }

  // Indices [first, last) of spans that touch [from, to].
  range(from, to) {
    const first = firstAbove(this.end, from);
    return [first, firstAbove(this.start, to, first)];
  }

  // The span at a time, or the nearest one within `reach`.
  find(at, reach) {
    const next = firstAbove(this.start, at);
    let best = -1, distance = reach;
    for (const i of [next - 1, next]) {
      if (i < 0 || i >= this.count) continue;
      const d = at < this.start[i] ? this.start[i] - at : at > this.end[i] ? at - this.end[i] : 0;
      if (d <= distance && (d < distance || best < 0)) {
        best = i;
        distance = d;
      }
    }
    return best < 0 ? null : this.operation[best];
  }

  draw(context, view, width) {
    const [first, last] = this.range(view.from, view.to);
    if (last - first <= width) this.drawSpans(context, view, width, first, last);
    else this.drawDense(context, view, width, first, last);
  }

  drawSpans(context, view, width, first, last) {
    const scale = width / (view.to - view.from);
    for (let i = first; i < last; ++i) {
      const op = this.operation[i], on = !view.lit || view.lit[op];
      const x = Math.max(-2, (this.start[i] - view.from) * scale);
      const right = Math.min(width + 2, (this.end[i] - view.from) * scale);
      const w = Math.max(right - x - (right - x > 4 ? 1 : 0), 0.75);
      context.fillStyle = colours.css(KIND_COLOURS[this.step.kind[op]], on ? 1 : 0.18);
      context.fillRect(x, this.top, w, this.height);
      if (op === view.chosen) {
        context.strokeStyle = colours.css("cursor");
        context.lineWidth = 2;
        context.strokeRect(x, this.top + 1, w, this.height - 2);
      }
      if (w > 46 && this.height >= 14 && on) this.drawName(context, this.step.shortText(op), x, w);
    }
  }
  drawName(context, text, x, w) {
    const room = Math.floor((w - 8) / 6.2);
    const short = text.length > room ? text.slice(0, room - 1) + "…" : text;
    context.fillStyle = colours.css("on-colour");
    context.fillText(short, x + 4, this.top + this.height / 2);
  }

  // Each pixel column has the colour of the kind that fills most of it, as opaque as it is filled.
  drawDense(context, view, width, first, last) {
    this.prepare(view.lit);
    const scale = (view.to - view.from) / width, columns = Math.ceil(width);
    let i = first, runStart = 0, runColour = "";
    const flush = (x) => {
      if (runColour && x > runStart) {
        context.fillStyle = runColour;
        context.fillRect(runStart, this.top, x - runStart, this.height);
      }
    };
    for (let x = 0; x < columns; ++x) {
      const from = view.from + x * scale, to = from + scale;
      while (i < last && this.end[i] <= from) ++i;
      let j = firstAbove(this.start, to, i, last);
      if (j > i && this.start[j - 1] >= to) --j;
      let colour = "";
      if (j > i) colour = this.columnColour(i, j, from, to, scale);
      if (colour !== runColour) {
        flush(x);
        runColour = colour;
        runStart = x;
      }
      if (j > i) i = j - 1;
    }
    flush(columns);
  }
  columnColour(i, j, from, to, scale) {
    let best = -1, most = 0, lit = 0;
    // What sticks out of the column at both ends.
    const before = Math.max(0, from - this.start[i]), after = Math.max(0, this.end[j - 1] - to);
    const kindOf = (s) => this.step.kind[this.operation[s]];
    const on = (s) => !this.litOf || this.litOf[this.operation[s]];
    for (const k of this.present) {
      let busy = this.bright[k][j] - this.bright[k][i];
      if (before && on(i) && kindOf(i) === k) busy -= before;
      if (after && on(j - 1) && kindOf(j - 1) === k) busy -= after;
      lit += busy;
      if (busy > most) {
        most = busy;
        best = k;
      }
    }
    if (best >= 0 && lit > 0.02 * scale)
      return colours.css(KIND_COLOURS[best], Math.max(0.25, Math.round((8 * lit) / scale) / 8));
    return this.litOf ? colours.css(KIND_COLOURS[kindOf(i)], 0.18) : colours.css(KIND_COLOURS[kindOf(i)], 0.25);
  }
}
