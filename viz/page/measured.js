// What was measured, beside what was predicted: of run and validate.
"use strict";

// What of a measurement can be shown: a recorder of PyTorch may see neither times nor memory.
function wasMeasured(m, validation) {
  return {
    time: m.steps_s.length > 0 && (!validation || validation.time_compared),
    memory: m.ranks.length > 0 && (!validation || validation.memory_compared)
  };
}

function measurementTiles(m, prediction, validation) {
  const has = wasMeasured(m, validation), rank = m.ranks[0];
  const predicted = (value, of, format) =>
      (prediction ? "predicted " + format(value) + ", " + signed(value / of - 1) : "");
  const p = prediction || {};
  return el(
      "dl", {class: "tiles"},
      has.time &&
          [
            tile("Step, median", seconds(m.median_step_s), predicted(p.step_time_s, m.median_step_s, seconds)),
            tile("Steps measured", commas(m.steps_s.length), "noise " + percent(m.noise))
          ],
      has.memory &&
          tile("Peak allocated, rank 0", bytes(rank.peak_allocated_bytes),
               predicted(p.peak_allocated_bytes, rank.peak_allocated_bytes, bytes)),
      rank && rank.wire_bytes > 0 && tile("Sent in a step, rank 0", bytes(rank.wire_bytes)),
      m.losses.length ?
          tile("Loss", lossText(m.losses[m.losses.length - 1]), "first " + lossText(m.losses[0])) :
          null);
}

// A small chart of values by step, with horizontal lines: [{value, name, colour}].
function stepChart(label, values, format, lines, joined) {
  const width = isSmall() ? 430 : 1000, height = 220, left = 84, bottom = 26, top = 12, right = 14;
  const shown = values.map((v, k) => [v, k]).filter(([v]) => Number.isFinite(v));
  if (!shown.length) return el("p", {}, label + ": none is a finite number.");
  const finite = shown.map(([v]) => v).concat(lines.map((l) => l.value));
  let low = lowest(finite), high = highest(finite);
  const room = 0.08 * (high - low) || 0.05 * Math.abs(high) || 1;
  low -= room;
  high += room;
  const x = (k) => left + ((k + 0.5) / values.length) * (width - left - right);
  const y = (v) => height - bottom - ((v - low) / (high - low)) * (height - top - bottom);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
  for (const v of ticks(low, high, 5))
    root.append(
        svg("line", {x1: left, x2: width - right, y1: y(v), y2: y(v), class: "grid"}),
        svg("text", {x: left - 8, y: y(v) + 4, "text-anchor": "end"}, format(v)));
  for (const l of lines)
    root.append(
        svg("line", {x1: left, x2: width - right, y1: y(l.value), y2: y(l.value), class: "mark " + l.colour}),
        svg("text", {x: width - right, y: y(l.value) - 5, "text-anchor": "end", class: l.colour}, l.name));
  if (joined)
    root.append(svg("polyline", {class: "front", points: shown.map(([v, k]) => `${x(k)},${y(v)}`).join(" ")}));
  if (values.length <= 400)
    for (const [v, k] of shown) {
      const dot = svg("circle", {cx: x(k), cy: y(v), r: 3, class: "dot"});
      dot.addEventListener("pointermove", (e) => showTip(e, `step ${k + 1}`, format(v)));
      dot.addEventListener("pointerleave", (e) => showTip(e));
      root.append(dot);
    }
  root.append(
      svg("text", {x: left, y: height - 6}, "step 1"),
      svg("text", {x: width - right, y: height - 6, "text-anchor": "end"}, commas(values.length)));
  return el("div", {class: "scatter"}, el("h3", {}, label), root);
}

// How many steps took how long: counts in equal intervals of time, with vertical lines.
function distributionChart(label, values, format, lines) {
  const width = isSmall() ? 430 : 1000, height = 190, left = 84, bottom = 26, top = 34, right = 14;
  const all = values.concat(lines.map((l) => l.value)), room = 0.03 * (highest(all) - lowest(all)) || 1e-9;
  const low = lowest(all) - room, high = highest(all) + room;
  const bins = Math.max(5, Math.min(40, Math.ceil(2 * Math.sqrt(values.length))));
  const counts = new Array(bins).fill(0), part = (v) => (v - low) / (high - low);
  for (const v of values) ++counts[Math.min(bins - 1, Math.floor(bins * part(v)))];
  const most = highest(counts), x = (v) => left + part(v) * (width - left - right);
  const y = (n) => height - bottom - (n / most) * (height - top - bottom);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
  for (const n of ticks(0, most, 3).filter((n) => Number.isInteger(n)))
    root.append(
        svg("line", {x1: left, x2: width - right, y1: y(n), y2: y(n), class: "grid"}),
        svg("text", {x: left - 8, y: y(n) + 4, "text-anchor": "end"}, commas(n)));
  for (const v of ticks(low, high, isSmall() ? 3 : 7))
    root.append(svg("text", {x: x(v), y: height - 6, "text-anchor": "middle"}, format(v)));
  counts.forEach((n, k) => {
    if (!n) return;
    const from = low + (k / bins) * (high - low), to = low + ((k + 1) / bins) * (high - low);
    const bar = svg("rect", {x: x(from) + 0.5, y: y(n), width: x(to) - x(from) - 1, height: y(0) - y(n), class: "bin"});
    bar.addEventListener(
        "pointermove", (e) => showTip(e, `${commas(n)} of ${commas(values.length)} steps`,
                                      `${format(from)} to ${format(to)}`));
    bar.addEventListener("pointerleave", (e) => showTip(e));
    root.append(bar);
  });
  lines.forEach((l, k) => {
    const end = x(l.value) > (left + width) / 2;
    root.append(
        svg("line", {x1: x(l.value), x2: x(l.value), y1: 12 + 14 * k, y2: y(0), class: "mark " + l.colour}),
        svg("text", {x: x(l.value) + (end ? -5 : 5), y: 14 + 14 * k, "text-anchor": end ? "end" : "start",
                     class: l.colour}, l.name));
  });
  return el("div", {class: "scatter", id: "distribution"}, el("h3", {}, label), root);
}

function showSteps(m, prediction, validation) {
  const has = wasMeasured(m, validation);
  if (!has.time && m.losses.length < 2) return;
  const lines = [{value: m.median_step_s, name: "median " + seconds(m.median_step_s), colour: "measured-line"}];
  if (prediction)
    lines.push({
      value: prediction.step_time_s,
      name: "predicted " + seconds(prediction.step_time_s),
      colour: "predicted-line"
    });
  section(
      "steps", "Steps",
      has.time ? stepChart("Measured steps, slowest rank", m.steps_s, seconds, lines, false) :
                 el("p", {}, "Step time: not compared."),
      has.time && m.steps_s.length > 4 ? distributionChart("How many steps took how long", m.steps_s, seconds, lines) :
                                         null,
      m.losses.length > 1 ? stepChart("Loss of every step run", m.losses, lossText, [], true) : null);
}

// Predicted beside measured, with a bar for each and the difference.
function compareTable(caption, rows) {
  const show = (row, value) => (row.unit === "B" ? bytes(value) : seconds(value));
  // Both bars have one scale; values of different units have no bars.
  const most = rows.every((r) => r.unit === rows[0].unit) ? highest(rows.flatMap((r) => [r.predicted, r.measured])) : 0;
  return sortableTable(
      caption,
      [
        {title: "what", text: (r) => r.what, value: (r) => r.what},
        {
          title: "predicted",
          number: true,
          text: (r) => show(r, r.predicted),
          value: (r) => r.predicted,
          bar: "forward",
          most
        },
        {
          title: "measured",
          number: true,
          text: (r) => show(r, r.measured),
          value: (r) => r.measured,
          bar: "optimizer",
          most
        },
        {
          title: "predicted less measured",
          number: true,
          text: (r) => (r.predicted < r.measured ? "−" : "+") + show(r, Math.abs(r.predicted - r.measured)),
          value: (r) => Math.abs(r.predicted - r.measured)
        },
        {title: "error", number: true, text: (r) => signed(r.error), value: (r) => r.error && Math.abs(r.error)},
      ],
      rows, {most: 15});
}

// What the first table compares, and the tolerance of each: rows of what was not compared have no numbers.
function mainRows(v) {
  return [[v.time_compared, v.step_time, "step " + percent(v.time_tolerance, 0)],
          [v.memory_compared, v.peak, "peak " + percent(v.memory_tolerance, 0)]]
      .filter(([compared, row]) => compared && row.what);
}

// A recorder of PyTorch sees memory at some operations only; `observed` is what it saw.
function showValidation(v, observed) {
  const main = mainRows(v);
  const equal = observed && observed.length ? "no difference where it was observed" : "equal at every operation";
  const lists = [
    ["What disagrees", v.findings.map((f) => f.text)], ["Differences", v.differences], ["Not compared", v.not_compared],
    ["Doubts about the measurement", v.doubts]
  ];
  section(
      "compared", "Predicted and measured",
      main.length ? compareTable(
                        "Tolerances: " + main.map(([, , tolerance]) => tolerance).join(", "),
                        main.map(([, row]) => row)) :
                    null,
      el("p", {},
         "Order of operations: " + (v.order_equal ? "as predicted" : "another") + ". Memory: " +
             (!v.memory_compared ? "not compared" :
                  v.memory_equal ? equal :
                                   "differs") +
             (v.time_compared ? "." : ". Step time: not compared.")),
      ...lists.filter(([, lines]) => lines.length)
          .flatMap(([title, lines]) => [el("h3", {}, title), el("ul", {}, ...lines.map((l) => el("li", {}, l)))]),
      ...[["where", "Where the step goes"], ["by_rank", "By rank"], ["by_action", "By kind of operation"],
          ["by_unit", "By unit"]]
          .map(([key, title]) => [title, v[key].filter((row) => row.what)])
          .filter(([, rows]) => rows.length)
          .map(([title, rows]) => compareTable(title, rows)));
}
