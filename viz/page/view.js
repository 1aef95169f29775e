// What the timeline and the memory chart share: the visible range, the cursor, the chosen operation and which
// operations are lit. Listeners are called once per frame.
"use strict";

class View {
  constructor(step) {
    this.listeners = [];
    this.frame = 0;
    this.show(step);
  }
  show(step) {
    this.step = step;
    const room = 0.01 * (step.high - step.low || 1);
    this.low = step.low - room;
    this.high = step.high + room;
    this.from = Math.max(this.low, -2 * room);
    this.to = this.high;
    this.cursor = null;
    this.chosen = null;
    this.lit = null;
    this.litName = "";
    this.changed();
  }
  listen(listener) { this.listeners.push(listener); }
  changed() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      for (const listener of this.listeners) listener(this);
    });
  }
  set(from, to) {
    const least = 50;  // nanoseconds
    const length = Math.min(Math.max(to - from, least), this.high - this.low);
    const begin = Math.min(Math.max(from + (to - from - length) / 2, this.low), this.high - length);
    this.from = begin;
    this.to = begin + length;
    this.changed();
  }
  whole() { this.set(this.low, this.high); }
  // factor < 1 zooms in; `at` stays where it is.
  zoom(factor, at = (this.from + this.to) / 2) {
    this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
  pan(part) { this.set(this.from + part * (this.to - this.from), this.to + part * (this.to - this.from)); }
  point(at) {
    this.cursor = at;
    this.changed();
  }
  choose(i) {
    this.chosen = i;
    if (i !== null) {
      this.cursor = this.step.start[i];
      const length = this.to - this.from;
      if (this.step.end[i] < this.from || this.step.start[i] > this.to)
        this.set(this.step.start[i] - length / 2, this.step.start[i] + length / 2);
    }
    this.changed();
  }
  // accepts(i): is operation i lit? null: none is dimmed.
  light(name, accepts) {
    this.litName = accepts ? name : "";
    this.lit = accepts ? Uint8Array.from({length: this.step.count}, (_, i) => (accepts(i) ? 1 : 0)) : null;
    this.changed();
  }
}
