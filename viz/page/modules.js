// The module tree: which modules are units, what becomes of their parameters after forward, what is recomputed, and how
// much each holds and takes. Siblings that are alike are one row, until it is opened.
"use strict";

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
  constructor(view, rows) {
    const root = moduleTree(rows);
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
    this.recomputes = this.sum(root, "recompute_s") > 0;
    this.names = rows.some((r) => r.recomputed);
    const titles = [
      "module", "class", "unit", "after forward", ...(this.names ? ["recomputed"] : []), "parameters", "forward",
      ...(this.recomputes ? ["again"] : []), "backward"
    ];
    const numbers = titles.indexOf("parameters");
    this.body = el("tbody");
    this.table =
        el("table", {class: "sortable tree", role: "treegrid"},
           el("caption", {}, "Modules: bars are shares of the model, seconds are of one steady step"),
           el("thead", {},
              el("tr", {}, ...titles.map((t, k) => el("th", {scope: "col", class: k >= numbers ? "number" : ""}, t)))),
           this.body);
    this.fill();
  }
  sum(node, key) { return node.alike ? node.alike.reduce((s, n) => s + n[key], 0) : node[key]; }
  children(node) {
    if (!this.groups.has(node)) this.groups.set(node, foldedChildren(node));
    return this.groups.get(node);
  }
  fill(focus) {
    const rows = [];
    const add = (node, depth) => {
      if (node.alike && this.open.has(node)) {
        node.alike.forEach((n) => add(n, depth));
        return;
      }
      rows.push(this.row(node, depth));
      if (!node.alike && this.open.has(node)) this.children(node).forEach((c) => add(c, depth + 1));
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
    const number = (key, format, colour) =>
        cell(this.sum(node, key), format, depth ? this.root[key] : 0, colour);
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
        el("td", {style: {"padding-left": 0.25 + 1.1 * depth + "rem"}}, toggle, words), el("td", {}, first.class),
        el("td", {}, units),
        el("td", {}, first.ignored ? "neither sharded nor reduced" : first.reshard || ""),
        this.names ? el("td", {}, first.recomputed || "") : null, number("parameters", count, "m-parameters"),
        number("forward_s", seconds, "forward"),
        this.recomputes ? number("recompute_s", seconds, "recompute") : null,
        number("backward_s", seconds, "backward"));
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

function showModules(view, rows) {
  const table = new ModuleTable(view, rows);
  return section(
      "modules", "Modules", el("div", {class: "scrolls"}, table.table),
      el("p", {class: "hint"},
         "A row with a unit is one call of fully_shard. Click a row to light its operations in the timeline; arrow " +
             "keys open and close rows."));
}
