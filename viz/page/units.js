// The plan's units with what each takes; kinds of operations; the critical path.
"use strict";

function showUnits(view, units) {
  const n = (key, title, format, bar) => ({
    title,
    number: true,
    bar,
    text: (u) => (u[key] === undefined || u[key] === 0 && bar ? "" : format(u[key])),
    value: (u) => u[key] ?? null
  });
  const columns =
      [
        {title: "unit", number: true, text: (u) => (u.unit === null ? "" : String(u.unit)), value: (u) => u.unit},
        {title: "modules", text: (u) => u.modules, value: (u) => u.modules},
        {title: "reshard", text: (u) => u.reshard_after_forward ?? "", value: (u) => u.reshard_after_forward ?? ""},
        {title: "recomputed", text: (u) => (u.recomputed ? "yes" : ""), value: (u) => (u.recomputed ? 1 : 0)},
        n("parameters", "parameters", count),
        n("parameters_per_shard", "per shard", count),
        n("compute_s", "compute, copies", seconds, "forward"),
        n("all_gather_s", "all-gather", seconds, "all-gather"),
        n("reduce_scatter_s", "reduce-scatter", seconds, "reduce-scatter"),
        n("all_reduce_s", "all-reduce", seconds, "all-reduce"),
        n("peak_bytes", "bytes at the peak", bytes, "m-parameters"),
      ]
          .filter(
              (c) => !["all-gather", "reduce-scatter", "all-reduce", "recomputed"].includes(c.title) ||
                  units.some((u) => c.value(u) > 0));
  let chosen = null;
  const table = sortableTable("Units of the plan: what one steady step of a rank takes of each", columns, units, {
    most: 60,
    onRow: (u, row) => {
      const off = chosen === u;
      for (const r of table.querySelectorAll("tr.chosen")) r.classList.remove("chosen");
      chosen = off ? null : u;
      if (!off) row.classList.add("chosen");
      const wanted = u.unit === null ? -1 : u.unit;
      view.light(
          u.unit === null ? "operations of no unit" : `unit ${u.unit} (${u.modules})`,
          off ? null : (i) => view.step.unit[i] === wanted);
    }
  });
  return section(
      "units", "Units", table,
      el("p", {class: "hint"},
         "Click a unit to light its operations in the timeline. Bytes at the peak: allocated at the highest " +
         "moment of the steady step; " +
             "a buffer of no unit counts for the unit of the operation that allocates it."));
}

function showKinds(prediction) {
  const rows = prediction.by_action;
  const whole = rows.reduce((sum, r) => sum + r.seconds, 0);
  const table = sortableTable(
      "Time by kind of operation, of one steady step",
      [
        {title: "operation", text: (r) => r.what, value: (r) => r.what},
        {title: "count", number: true, text: (r) => commas(r.count), value: (r) => r.count},
        {title: "time", number: true, text: (r) => seconds(r.seconds), value: (r) => r.seconds, bar: "forward"},
        {title: "of all work", number: true, text: (r) => percent(r.seconds / whole), value: (r) => r.seconds},
        {title: "each", number: true, text: (r) => seconds(r.seconds / r.count), value: (r) => r.seconds / r.count},
      ],
      rows, {most: 15});
  const path = prediction.critical_path.length ?
      [
        el("h3", {}, "The critical path"),
        el("p", {class: "hint"}, "The chain of operations that decides when the step ends, by kind. "),
        el("ul", {class: "columns"}, ...prediction.critical_path.map((line) => el("li", {}, line)))
      ] :
      [];
  return section("kinds", "Kinds of operations", table, ...path);
}
