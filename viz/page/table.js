// Tables that sort by any column; a cell may carry a bar.
"use strict";

// columns: [{title, text(row), value(row), number, wide, bar: colour name, most: value of the longest bar}]; rows stand
// as they are given until a heading is clicked. wide: its text is broken into lines.
function sortableTable(caption, columns, rows, {onRow, most = Infinity} = {}) {
  const table = el("table", {class: "sortable"}, el("caption", {}, caption));
  const head = el("tr"), body = el("tbody");
  const largest = columns.map((c) => (c.bar ? c.most ?? highest(rows.map((r) => c.value(r) || 0)) : 0));
  let by = null, up = true, shown = most;
  const fill = () => {
    const order = rows.map((row, k) => [row, k]);
    if (by) {
      const sign = up ? 1 : -1;
      order.sort(([a, i], [b, j]) => {
        const x = by.value(a), y = by.value(b);
        if (x === y) return i - j;
        if (x === null || x === undefined) return 1;
        if (y === null || y === undefined) return -1;
        return sign * (x < y ? -1 : 1);
      });
    }
    body.replaceChildren();
    for (const [row] of order.slice(0, shown)) body.append(rowOf(row));
    if (order.length > shown)
      body.append(
          el("tr", {class: "more"},
             el("td", {colspan: columns.length}, button(`show all ${commas(order.length)} rows`, "", () => {
                  shown = Infinity;
                  fill();
                }))));
  };
  const rowOf = (row) => {
    const tr = el("tr", {}, ...columns.map((c, k) => {
      const td = el("td", {class: c.number ? "number" : c.wide ? "wide" : ""}, c.text(row));
      if (c.bar && largest[k] > 0 && c.value(row) > 0) {
        td.classList.add("bar-cell");
        td.style.setProperty("--part", (100 * c.value(row)) / largest[k] + "%");
        td.style.setProperty("--colour", `var(--${c.bar})`);
      }
      return td;
    }));
    if (onRow) {
      tr.tabIndex = 0;
      tr.classList.add("clickable");
      tr.addEventListener("click", () => {
        if (!String(getSelection())) onRow(row, tr);
      });
      tr.addEventListener("keydown", (e) => {
        if (e.key === "Enter") onRow(row, tr);
      });
    }
    return tr;
  };
  for (const c of columns) {
    const th = el("th", {scope: "col", class: c.number ? "number" : ""});
    th.append(
        el("button", {
          type: "button",
          onclick: () => {
            up = by === c ? !up : !c.number;
            by = c;
            for (const other of head.children) other.removeAttribute("aria-sort");
            th.setAttribute("aria-sort", up ? "ascending" : "descending");
            fill();
          }
        },
           c.title));
    head.append(th);
  }
  table.append(el("thead", {}, head), body);
  fill();
  return el("div", {class: "scrolls", tabindex: "0", role: "region", "aria-label": caption}, table);
}
