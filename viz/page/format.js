// Text for people, and elements. Every text of a record goes through textContent, so none is read as markup.
"use strict";

const NS = 1, US = 1e3, MS = 1e6, SECOND = 1e9;

// Three significant digits, without an exponent: 1.06, 12.3, 161, 1,234.
function digits(x) {
  if (!isFinite(x)) return String(x);
  if (x === 0) return "0";
  const magnitude = Math.floor(Math.log10(Math.abs(x)));
  if (magnitude >= 3) return commas(Math.round(x));
  if (magnitude < -3) return x.toExponential(2);
  const text = x.toFixed(Math.max(0, 2 - magnitude));
  return text.length > 4 && Math.abs(Number(text)) >= 10 ** (magnitude + 1) ? digits(Number(text)) : text;
}
function commas(n) { return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ","); }

// Of nanoseconds: "1.06 s", "161 ms", "12.3 µs", "350 ns".
function time(ns) {
  const size = Math.abs(ns);
  if (size === 0) return "0";
  if (size < US) return digits(ns) + " ns";
  if (size < MS) return digits(ns / US) + " µs";
  if (size < SECOND) return digits(ns / MS) + " ms";
  return digits(ns / SECOND) + " s";
}
// A place on the time axis, to the microsecond: "237.125 ms".
function moment(ns) { return (ns / MS).toFixed(3).replace(/\B(?=(\d{3})+(?!\d)\.)/g, ",") + " ms"; }
// Names of ticks that are `step` apart.
function tickText(ns, step) {
  const unit = step >= 0.1 * SECOND ? [SECOND, "s"] : step >= 0.1 * MS ? [MS, "ms"] : [US, "µs"];
  const places = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
  return (ns / unit[0]).toFixed(places) + " " + unit[1];
}
function seconds(s) { return s === null || s === undefined ? "-" : time(s * SECOND); }
function bytes(b) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = b, k = 0;
  while (Math.abs(size) >= 1000 && k + 1 < units.length) {
    size /= 1024;
    ++k;
  }
  return (k === 0 ? commas(size) : digits(size)) + " " + units[k];
}
function count(n) {
  const units = ["", " K", " M", " B", " T"];
  let size = n, k = 0;
  while (Math.abs(size) >= 1000 && k + 1 < units.length) {
    size /= 1000;
    ++k;
  }
  return (k === 0 ? commas(size) : digits(size)) + units[k];
}
function flops(f) {
  const units = ["FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"];
  let size = f, k = 0;
  while (size >= 1000 && k + 1 < units.length) {
    size /= 1000;
    ++k;
  }
  return digits(size) + " " + units[k];
}
// Numbers that are not finite are null in JSON.
function percent(fraction, places = 1) {
  return Number.isFinite(fraction) ? (100 * fraction).toFixed(places) + " %" : "-";
}
function signed(fraction) {
  return Number.isFinite(fraction) ? (fraction >= 0 ? "+" : "−") + percent(Math.abs(fraction)) : "-";
}
function lossText(loss) { return Number.isFinite(loss) ? loss.toPrecision(4) : "NaN"; }

// Of lists of any length: a call takes only so many arguments. Of none: Infinity and -Infinity.
function lowest(values) { return values.reduce((a, b) => Math.min(a, b), Infinity); }
function highest(values) { return values.reduce((a, b) => Math.max(a, b), -Infinity); }

// el("p", {class: "note"}, "text", child, ...)
function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [k, v] of Object.entries(value)) e.style.setProperty(k, v);
    else e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}
function button(text, title, action) { return el("button", {type: "button", title, onclick: action}, text); }

// A section of the page with its entry in the contents.
function section(id, title, ...children) {
  document.getElementById("contents").append(el("a", {href: "#" + id}, title));
  const s = el("section", {id, "aria-labelledby": id + "-title"}, el("h2", {id: id + "-title"}, title), ...children);
  document.getElementById("page").append(s);
  return s;
}
