// What is said of one operation: in a tip, and in the panel below the timeline.
"use strict";

function shortDescription(step, i) {
  const lines = [
    step.text(i),
    `${time(step.end[i] - step.start[i])} from ${moment(step.start[i])}, micro-batch ${step.microBatch[i] + 1}`
  ];
  if (step.shape(i)) lines.push(step.shape(i));
  if (step.other) lines.push(besideOther(step, i));
  const d = demandOf(step, i);
  if (d) {
    const parts = [];
    if (d.flops) parts.push(flops(d.flops));
    if (d.bytes) parts.push("buffers of " + bytes(d.bytes));
    if (d.alone && Math.abs(d.alone - (step.end[i] - step.start[i])) > 0.01 * d.alone)
      parts.push(time(d.alone) + " with the machine to itself");
    if (parts.length) lines.push(parts.join(", "));
  }
  const waits = step.waits(i), delayed = step.delayed(i);
  if (waits.length) lines.push("waited for: " + someNames(step, waits));
  const held = heldBackBy(step, i);
  if (held && held.operation !== null && !waits.includes(held.operation))
    lines.push(`began when ${step.text(held.operation)} was done, which ${held.why}`);
  if (delayed.length) lines.push("is waited for by: " + someNames(step, delayed));
  return lines;
}

// "gather_copy_in unit 4 (model.layers.3), all_gather unit 5 (model.layers.4) and 2 more"
function someNames(step, operations, most = 2) {
  const names = operations.slice(0, most).map((i) => step.text(i)), more = operations.length - names.length;
  return names.join(", ") + (more ? ` and ${commas(more)} more` : "");
}

// "predicted: 1.20 ms, +3.1 % of measured"
function besideOther(step, i) {
  const here = step.end[i] - step.start[i], there = step.other.end[i] - step.other.start[i];
  const [predicted, measured] = step.predicted ? [here, there] : [there, here];
  return `${step.predicted ? "measured" : "predicted"}: ${time(there)}; predicted is ${
      signed(predicted / measured - 1)} of measured`;
}

function demandOf(step, i) {
  const c = step.columns;
  if (!c.demand) return null;
  const k = c.demand[i];
  return {flops: c.demand_flops[k], bytes: c.demand_bytes[k], alone: c.demand_alone_ns[k], host: c.demand_host_ns[k]};
}

// What ended last of all that operation i had to wait for: {operation, at, why}; operation null: none of this step.
function heldBackBy(step, i) {
  const candidates = step.waits(i).map((w) => ({operation: w, at: step.end[w], why: "it waits for"}));
  const before = (stream, why) => {
    const place = firstAbove(stream, i) - 2;  // streams are in the order of issue
    if (place >= 0) candidates.push({operation: stream[place], at: step.end[stream[place]], why});
  };
  const stream = step.lanes[step.lane[i]];
  if (step.lane[i] === 0 && stream[0] === i && step.start[i] >= 0)
    return {operation: null, at: step.start[i], why: "the step before was done"};
  before(stream, "is before it on its stream");
  const communicator = step.columns.label_communicator[step.label[i]];
  if (communicator) before(step.ofCommunicator(communicator), "uses the same communicator");
  if (step.issued) candidates.push({operation: null, at: step.issued[i], why: "the host had issued it"});
  const last = candidates.reduce((best, c) => (best === null || c.at > best.at ? c : best), null);
  // A collective that finds too few free multiprocessors starts when the kernel that has them ends.
  if (last && communicator && step.columns.demand && step.start[i] - last.at > 1000) {
    const k =
        step.lanes[0].find((k) => Math.abs(step.end[k] - step.start[i]) <= 2 && step.start[k] < step.start[i] - 2);
    if (k !== undefined) return {operation: k, at: step.end[k], why: "had the multiprocessors"};
  }
  return last;
}

class OperationPanel {
  constructor(view, chart) {
    this.view = view;
    this.shown = undefined;
    this.box = el("div", {class: "operation", "aria-live": "polite"});
    chart.element.append(this.box);
    view.listen(() => this.draw());
  }
  link(i) {
    return el("button", {type: "button", class: "link", onclick: () => this.view.choose(i)}, this.view.step.text(i));
  }
  draw() {
    const step = this.view.step, i = this.view.chosen;
    if (this.shown === i && this.of === step) return;
    this.shown = i;
    this.of = step;
    this.box.hidden = i === null;
    if (i === null) return;
    const rows = [];
    const row = (name, ...value) => rows.push(el("tr", {}, el("th", {scope: "row"}, name), el("td", {}, ...value)));
    row("runs",
        `${moment(step.start[i])} to ${moment(step.end[i])}: ${time(step.end[i] - step.start[i])}` +
            (step.critical[i] ? ", on the critical path" : ""));
    row("on",
        step.columns.lanes[step.lane[i]].replace(/_/g, "-") +
            (step.columns.lanes[step.lane[i]] === "host" ? "" : " stream") +
            `, micro-batch ${step.microBatch[i] + 1}` + (step.unit[i] >= 0 ? `, unit ${step.unit[i]}` : ""));
    if (step.issued)
      row("issued",
          moment(step.issued[i]) + (step.hostTime(i) ? `, which takes the host ${time(step.hostTime(i))}` : ""));
    if (step.shape(i)) row("works on", step.shape(i));
    if (step.other) row(step.predicted ? "measured" : "predicted", besideOther(step, i).replace(/^\w+: /, ""));
    const d = demandOf(step, i);
    if (d)
      row("demand",
          [
            d.flops ? flops(d.flops) : "", d.bytes ? "buffers of " + bytes(d.bytes) : "",
            d.alone ? time(d.alone) + " with the machine to itself" : ""
          ].filter(Boolean)
                  .join(", ") ||
              "none");
    const held = heldBackBy(step, i);
    if (held) {
      const slack = step.start[i] - held.at;
      row("started when",
          ...(held.operation === null ? [held.why] :
                                        [this.link(held.operation), " was done, which " + held.why]),
          slack > 1000 ? `; ${time(slack)} later` : "");
    }
    const waits = step.waits(i), delayed = step.delayed(i);
    row(`waits for ${waits.length}`, ...this.list(waits));
    row(`waited for by ${commas(delayed.length)}`, ...this.list(delayed));
    this.box.replaceChildren(
        el("h3", {}, `Operation ${commas(i)}: `, step.text(i)),
        el("table", {class: "plain"}, el("tbody", {}, ...rows)));
  }
  list(operations) {
    const shown = operations.slice(0, 8).flatMap((i, k) => [k ? ", " : "", this.link(i)]);
    return operations.length > 8 ? [...shown, ` and ${commas(operations.length - 8)} more`] : shown;
  }
}
