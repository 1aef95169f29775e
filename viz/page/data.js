// The data of the page: compressed JSON in script elements, and a step's columns as typed arrays.
"use strict";

// Of the element's text: base64, then the zlib format.
async function unpack(id) {
  const text = atob(document.getElementById(id).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function sums(deltas) {
  const out = new Float64Array(deltas.length);
  let sum = 0;
  for (let i = 0; i < deltas.length; ++i) out[i] = sum += deltas[i];
  return out;
}
// begin[i]: the sum of what is before i.
function offsets(counts) {
  const out = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; ++i) out[i + 1] = out[i] + counts[i];
  return out;
}
// The first index in [from, to) with values[index] > x; `to` if there is none. Values do not fall.
function firstAbove(values, x, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] > x) to = middle;
    else from = middle + 1;
  }
  return from;
}

// One steady step: operations in the order in which the host issues them; times in nanoseconds.
class Step {
  constructor(name, columns) {
    const c = columns;
    this.name = name;
    this.columns = c;
    this.count = c.label.length;
    this.period = c.step_ns;
    this.start = sums(c.start_ns_d);
    this.end = this.start.map((s, i) => s + c.duration_ns[i]);
    this.issued = c.issued_ns_d.length === this.count ? sums(c.issued_ns_d) : null;
    this.label = Int32Array.from(c.label);
    this.kind = Uint8Array.from(c.label, (l) => c.label_kind[l]);
    this.lane = Uint8Array.from(c.label, (l) => c.label_lane[l]);
    this.unit = Int32Array.from(c.label, (l) => c.label_unit[l]);
    this.microBatch = Int16Array.from(c.micro_batch);
    this.waitBegin = offsets(c.waits);
    this.waitFor = Int32Array.from(c.waits_back);
    for (let i = 0; i < this.count; ++i)
      for (let k = this.waitBegin[i]; k < this.waitBegin[i + 1]; ++k) this.waitFor[k] = i - this.waitFor[k];
    this.critical = new Uint8Array(this.count);
    for (const i of sums(c.critical_d)) this.critical[i] = 1;
    this.exposedStart = sums(c.exposed_start_ns_d);
    // Where the step begins and ends on the page: the host may have issued operations before the step began.
    let low = 0, high = 0;
    for (let i = 0; i < this.count; ++i) {
      if (this.start[i] < low && this.end[i] > this.start[i]) low = this.start[i];
      if (this.end[i] > high) high = this.end[i];
    }
    this.high = high;
    // A host that is through before the step begins is said in words (timeline.js).
    this.hostEnd = this.issued && this.count ? this.issued[this.count - 1] : null;
    this.hostBegin = this.hostEnd === null ? null : this.issued[0] - this.hostTime(0);
    this.hostAhead = this.hostEnd !== null && this.hostEnd < low;
    this.low = this.hostBegin === null || this.hostAhead ? low : Math.min(low, this.hostBegin);
    this.lanes = this.columns.lanes.map(() => []);
    for (let i = 0; i < this.count; ++i) this.lanes[this.lane[i]].push(i);
  }
  text(i) { return this.columns.label_text[this.label[i]]; }
  // The sizes that it works on, in words; empty where they are not known.
  shape(i) { return this.columns.shapes[this.columns.label_shape[this.label[i]]]; }
  // The collectives of a communicator, in the order of issue.
  ofCommunicator(c) {
    this.communicators = this.communicators || new Map();
    if (!this.communicators.has(c))
      this.communicators.set(
          c, Array.from(this.label.keys()).filter((i) => this.columns.label_communicator[this.label[i]] === c));
    return this.communicators.get(c);
  }
  // A few words for the inside of its rectangle: "mlp.up_proj", "unit 25".
  shortText(i) {
    const text = this.text(i);
    const kernel = /^\w+ \w+ (\S+) op \d+$/.exec(text);
    if (kernel) return kernel[1].split(".").slice(-2).join(".");
    const unit = /unit \d+/.exec(text);
    return unit ? unit[0] : text.replace(/_/g, " ");
  }
  hostTime(i) { return this.columns.demand ? this.columns.demand_host_ns[this.columns.demand[i]] : 0; }
  waits(i) { return Array.from(this.waitFor.subarray(this.waitBegin[i], this.waitBegin[i + 1])); }
  // Operations that wait for i.
  delayed(i) {
    if (!this.waiters) {
      const counts = new Int32Array(this.count);
      for (const w of this.waitFor) ++counts[w];
      this.waiterBegin = offsets(counts);
      this.waiters = new Int32Array(this.waitFor.length);
      const place = Int32Array.from(this.waiterBegin);
      for (let k = 0; k < this.count; ++k)
        for (let j = this.waitBegin[k]; j < this.waitBegin[k + 1]; ++j) this.waiters[place[this.waitFor[j]]++] = k;
    }
    return Array.from(this.waiters.subarray(this.waiterBegin[i], this.waiterBegin[i + 1]));
  }
}

// Allocated bytes by part at every moment of a step at which they change; two moments belong to operation i: 2 i (its
// highest) and 2 i + 1 (its frees are done).
class MemoryOfStep {
  constructor(step) {
    const c = step.columns, parts = c.memory_parts.length, moments = sums(c.memory_moment_d);
    let rows = 1;
    for (let k = 0; k < moments.length; ++k)
      if (k === 0 || moments[k] !== moments[k - 1]) ++rows;
    this.parts = c.memory_parts;
    this.rows = rows;
    this.stack = new Float64Array(rows * parts);
    this.total = new Float64Array(rows);
    this.moment = new Float64Array(rows);
    this.moment[0] = -1;
    this.stack.set(c.memory_start_bytes);
    this.total[0] = c.memory_start_bytes.reduce((a, b) => a + b, 0);
    for (let k = 0, row = 0; k < moments.length; ++k) {
      if (k === 0 || moments[k] !== moments[k - 1]) {
        this.stack.copyWithin((row + 1) * parts, row * parts, (row + 1) * parts);
        ++row;
        this.total[row] = this.total[row - 1];
        this.moment[row] = moments[k];
      }
      this.stack[row * parts + c.memory_part[k]] += c.memory_bytes[k];
      this.total[row] += c.memory_bytes[k];
    }
    this.peakRow = 0;
    for (let r = 1; r < rows; ++r)
      if (this.total[r] > this.total[this.peakRow]) this.peakRow = r;
    const counted = c.measured_bytes_d ? sums(c.measured_bytes_d) : null;
    this.measured = counted && Float64Array.from(this.moment, (at, r) => (at < 0 ? this.total[r] : counted[at]));
    this.byDevice = this.placed(step, this.deviceTimes(step));
    this.byHost = step.issued ? this.placed(step, step.issued) : null;
  }
  at(row) { return this.stack.subarray(row * this.parts.length, (row + 1) * this.parts.length); }
  operation(row) { return this.moment[row] < 0 ? 0 : this.moment[row] >> 1; }
  // By operation: when the compute stream starts the next operation that the host issued from here on.
  deviceTimes(step) {
    const times = new Float64Array(step.count);
    let next = step.high;
    for (let i = step.count - 1; i >= 0; --i) {
      if (step.lane[i] === 0) next = step.start[i];
      times[i] = next;
    }
    return times;
  }
  placed(step, times) {
    const out = new Float64Array(this.rows);
    out[0] = step.low;
    for (let r = 1; r < this.rows; ++r) out[r] = Math.max(out[r - 1], times[this.operation(r)]);
    return out;
  }
}
