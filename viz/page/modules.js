// The module tree: which modules are units, what becomes of their parameters after forward, what is recomputed, and how
// much each holds and takes. Siblings that are alike are one row, until it is opened; any column sorts siblings.
"use strict";

// What the units of a module and of all inside take: keys of rows of `units`. A unit of several modules stands at each
// of them, and counts once in what they are inside of.
const OF_UNITS = ["all_gather_s", "reduce_scatter_s", "all_reduce_s", "peak_bytes"];

// Rows in pre-order with their depth -> a tree.
function moduleTree(rows) {
  const path = [];
  for (const row of rows) {
    const node = {...row, children: [], text: row.name.split(".").pop() || "the model"};
    path.length = row.depth;
    if (row.depth) path[row.depth - 1].children.push(node);
    path.push(node);
  }
  const sign = (node) => {
    node.children.forEach(sign);
    node.units = new Set(node.unit === undefined ? [] : [node.unit]);
    for (const c of node.children)
      for (const u of c.units) node.units.add(u);
    node.hasUnits = node.children.some((c) => c.unit !== undefined || c.hasUnits);
    node.sign = JSON.stringify([
      node.class, node.parameters, node.unit !== undefined, node.reshard, node.recomputed, node.ignored,
      node.children.map((c) => c.sign)
    ]);
  };
  sign(path[0]);
  return path[0];
}

// The children of a node: those that follow one another and are alike as {alike: [...]}.
function foldedChildren(node) {
  const out = [];
  for (const child of node.children) {
    const last = out[out.length - 1];
    if (last && last.alike && last.alike[0].sign === child.sign) last.alike.push(child);
    else out.push({alike: [child]});
  }
  return out.flatMap(({alike}) => (alike.length > 2 ? [alike[0], {alike: alike.slice(1)}] : alike));
}

class ModuleTable {
  constructor(view, rows, units) {
    const root = moduleTree(rows);
    this.units = units;
    this.view = view;
    this.root = root;
    this.open = new Set();
    const openUnits = (node) => {
      if (!node.hasUnits) return;
      this.open.add(node);
      node.children.forEach(openUnits);
    };
    openUnits(root);
    if (!this.open.size) this.open.add(root);
    this.groups = new Map();  // node -> its children, folded once
    this.names = rows.some((r) => r.recomputed);
    this.by = null;  // column that siblings are sorted by; none: the model's order
    this.up = true;
    const number = (title, key, format, colour, always) =>
        (always || this.sum(root, key) > 0) && {title, key, format, colour};
    this.numbers = [
      number("parameters", "parameters", count, "m-parameters", true),
      number("forward", "forward_s", seconds, "forward", true), number("again", "recompute_s", seconds, "recompute"),
      number("backward", "backward_s", seconds, "forward", true),
      number("all-gather", "all_gather_s", seconds, "all-gather"),
      number("reduce-scatter", "reduce_scatter_s", seconds, "reduce-scatter"),
      number("all-reduce", "all_reduce_s", seconds, "all-reduce"),
      number("at the peak", "peak_bytes", bytes, "m-parameters")
    ].filter(Boolean);
    const words = [
      {title: "module", key: "text"}, {title: "unit", key: "unit"}, {title: "after forward", key: "reshard"},
      ...(this.names ? [{title: "recomputed", key: "recomputed"}] : [])
    ];
    this.body = el("tbody");
    this.head = el("tr", {}, ...[...words, ...this.numbers].map((c) => this.header(c)));
    this.table =
        el("table", {class: "sortable tree", role: "treegrid"},
           el("caption", {},
              "Modules with all inside: bars are shares of the model, times are of one steady step, bytes at its " +
                  "highest moment"),
           el("thead", {}, this.head), this.body);
    this.fill();
  }
  // A click sorts by the column, a second one the other way, a third one as the model has them.
  header(column) {
    const th = el("th", {scope: "col", class: column.format ? "number" : ""});
    th.append(button(column.title, "Sort the modules inside of each by this", () => {
      const first = !column.format;  // words from A, numbers from the largest
      if (this.by !== column) [this.by, this.up] = [column, first];
      else if (this.up === first) this.up = !first;
      else this.by = null;
      for (const other of this.head.children) other.removeAttribute("aria-sort");
      if (this.by) th.setAttribute("aria-sort", this.up ? "ascending" : "descending");
      this.fill();
    }));
    return th;
  }
  sorted(nodes) {
    if (!this.by) return nodes;
    const {key, format} = this.by, sign = this.up ? 1 : -1;
    const value = (n) => (format ? this.sum(n, key) : (n.alike ? n.alike[0] : n)[key]);
    return nodes.map((n, k) => [value(n), k, n])
        .sort(([a, i], [b, j]) => {
          if (a === b) return i - j;
          if (a === undefined) return 1;
          if (b === undefined) return -1;
          return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true}));
        })
        .map(([, , n]) => n);
  }
  sum(node, key) {
    const nodes = node.alike || [node];
    if (!OF_UNITS.includes(key)) return nodes.reduce((s, n) => s + n[key], 0);
    const units = new Set(nodes.flatMap((n) => [...n.units]));
    return [...units].reduce((s, u) => s + ((this.units[u] || {})[key] || 0), 0);
  }
  children(node) {
    if (!this.groups.has(node)) this.groups.set(node, foldedChildren(node));
    return this.groups.get(node);
  }
  fill(focus) {
    const rows = [];
    const add = (node, depth) => {
      if (node.alike && this.open.has(node)) {
        this.sorted(node.alike).forEach((n) => add(n, depth));
        return;
      }
      rows.push(this.row(node, depth));
      if (!node.alike && this.open.has(node)) this.sorted(this.children(node)).forEach((c) => add(c, depth + 1));
    };
    add(this.root, 0);
    this.body.replaceChildren(...rows);
    const again = focus && rows.find((r) => r.node === focus);
    if (again) again.focus();
  }
  toggle(node) {
    if (this.open.has(node)) this.open.delete(node);
    else this.open.add(node);
    this.fill(node.alike ? node.alike[0] : node);
  }
  row(node, depth) {
    const first = node.alike ? node.alike[0] : node, last = node.alike && node.alike[node.alike.length - 1];
    const opens = node.alike || node.children.length > 0, isOpen = this.open.has(node);
    const toggle = opens ? el("button", {
      type: "button",
      class: "toggle",
      tabindex: -1,
      title: node.alike ? "Show each of them" :
          isOpen        ? "Hide what is inside" :
                          "Show what is inside",
      onclick: (e) => {
        e.stopPropagation();
        this.toggle(node);
      }
    },
                              node.alike ? "⋯" :
                                  isOpen ? "▾" :
                                           "▸") :
                           el("span", {class: "toggle"});
    const words = node.alike ? `${first.text} to ${last.text}: ${commas(node.alike.length)} more like this` : node.text;
    const units = node.alike ? (first.unit === undefined ? "" : `${first.unit} to ${last.unit}`) :
        node.unit === undefined ? "" :
                                  String(node.unit);
    const cell = (value, format, whole, colour) => {
      const td = el("td", {class: "number"}, value ? format(value) : "");
      if (value > 0 && whole > 0) {
        td.classList.add("bar-cell");
        td.style.setProperty("--part", (100 * value) / whole + "%");
        td.style.setProperty("--colour", `var(--${colour})`);
      }
      return td;
    };
    const tr = el(
        "tr", {
          class: "clickable" + (first.unit === undefined ? "" : " unit-row"),
          tabindex: 0,
          "aria-level": depth + 1,
          "aria-expanded": opens ? String(isOpen) : null,
          onclick: () => {
            if (!String(getSelection())) this.light(node, tr);
          },
          onkeydown: (e) => this.key(e, node, opens, isOpen, tr)
        },
        el("td", {style: {"padding-left": 0.25 + 1.1 * depth + "rem"}}, toggle, words,
           el("small", {}, " " + first.class)),
        el("td", {}, units),
        el("td", {class: "wide"}, first.ignored ? "neither sharded nor reduced" : first.reshard || ""),
        this.names ? el("td", {}, first.recomputed || "") : null,
        ...this.numbers.map(({key, format, colour}) => {
          return cell(this.sum(node, key), format, depth ? this.sum(this.root, key) : 0, colour);
        }));
    tr.node = first;
    return tr;
  }
  key(event, node, opens, isOpen, tr) {
    if (event.key === "Enter") this.light(node, tr);
    else if (opens && ((event.key === "ArrowRight" && !isOpen) || (event.key === "ArrowLeft" && isOpen)))
      this.toggle(node);
    else if (event.key === "ArrowDown" && tr.nextSibling) tr.nextSibling.focus();
    else if (event.key === "ArrowUp" && tr.previousSibling) tr.previousSibling.focus();
    else return;
    event.preventDefault();
  }
  // Lights the kernels inside, and the collectives and copies of the units.
  light(node, tr) {
    const nodes = node.alike || [node];
    const name = nodes[0].name ? nodes[0].name + (nodes.length > 1 ? ` to ${nodes[nodes.length - 1].name}` : "") :
                                 "the model";
    const off = this.view.litName === name;
    for (const r of this.table.querySelectorAll("tr.chosen")) r.classList.remove("chosen");
    if (!off) tr.classList.add("chosen");
    const names = new Set(nodes.map((n) => n.name)), units = new Set();
    const gather = (n) => {
      if (n.unit !== undefined) units.add(n.unit);
      n.children.forEach(gather);
    };
    nodes.forEach(gather);
    const c = this.view.step.columns;
    const labels = c.label_text.map((text, l) => {
      const kernel = /^\w+ \w+ (\S+) op \d+$/.exec(text);
      if (!kernel) return units.has(c.label_unit[l]);
      const parts = kernel[1].split(".");
      return parts.some((_, k) => names.has(parts.slice(0, k + 1).join("."))) || names.has("");
    });
    this.view.light(name, off ? null : (i) => labels[this.view.step.label[i]]);
  }
}

function showModules(view, rows, units) {
  const table = new ModuleTable(view, rows, units);
  return section(
      "modules", "Modules", el("div", {class: "scrolls"}, table.table),
      el("p", {class: "hint"},
         "A row with a unit is one call of fully_shard. Click a row to light its operations in the timeline; arrow " +
             "keys open and close rows. Headings sort the modules inside of each; a third click puts them back."));
}
