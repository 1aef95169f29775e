// Canvases: sizes in device pixels, colours from the style sheet, ticks of axes, and the gestures that move a view.
"use strict";

const KIND_COLOURS =
    ["forward", "backward", "recompute", "all-gather", "reduce-scatter", "all-reduce", "copy", "optimizer", "host"];

// Colours as the style sheet has them now: [r, g, b] by name, and alpha where it is not 1.
const colours = {
  cache: new Map(),
  texts: new Map(),
  probe: null,
  get(name) {
    let rgb = this.cache.get(name);
    if (rgb) return rgb;
    if (!this.probe) document.body.append(this.probe = el("span", {hidden: true}));
    this.probe.style.color = `var(--${name})`;
    const found = getComputedStyle(this.probe).color.match(/[\d.]+/g) || [0, 0, 0];
    rgb = found.map(Number);
    this.cache.set(name, rgb);
    return rgb;
  },
  css(name, alpha = 1) {
    const key = alpha === 1 ? name : name + alpha;
    let text = this.texts.get(key);
    if (text) return text;
    const [r, g, b, own = 1] = this.get(name);
    this.texts.set(key, text = `rgba(${r},${g},${b},${alpha * own})`);
    return text;
  },
  forget() {
    this.cache.clear();
    this.texts.clear();
  },
};

// Makes the canvas as large as its box; returns its 2d context in CSS pixels, with width, height and ratio.
function fitted(canvas) {
  const printing = document.documentElement.classList.contains("printing");
  const ratio = printing ? 3 : window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return {context, width, height, ratio};
}

// Round values in [low, high], about `wanted` of them.
function ticks(low, high, wanted, base = 10) {
  const rough = (high - low) / Math.max(1, wanted);
  if (!(rough > 0)) return [];
  const power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const steps = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16];
  const step = power * (steps.find((s) => s * power >= rough) || base);
  const out = [];
  for (let x = Math.ceil(low / step) * step; x <= high; x += step) out.push(Math.abs(x) < step / 1e6 ? 0 : x);
  return out;
}
// Of a logarithmic axis, 0 < low < high: powers of two, `most` or fewer.
function powersOfTwo(low, high, most) {
  const from = Math.ceil(Math.log2(low)), to = Math.floor(Math.log2(high));
  const each = Math.max(1, Math.ceil((to - from + 1) / most)), out = [];
  for (let k = Math.ceil(from / each) * each; k <= to; k += each) out.push(2 ** k);
  return out;
}
// 1, 2 and 5 times powers of ten, or the powers alone.
function powersOfTen(low, high, between) {
  const out = [];
  for (let k = Math.floor(Math.log10(low)); 10 ** k <= high; ++k)
    for (const m of between ? [1, 2, 5] : [1])
      if (m * 10 ** k >= low && m * 10 ** k <= high) out.push(m * 10 ** k);
  return out;
}

// Wheel (with Ctrl, or after a click into the chart), drag, pinch and double click; `view` has time on its x axis.
function gestures(canvas, view, {hover, click}) {
  const pointers = new Map();
  let moved = 0;
  const timeAt = (x) => view.from + (x / canvas.clientWidth) * (view.to - view.from);
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return {x: event.clientX - box.left, y: event.clientY - box.top};
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(event.deltaX / canvas.clientWidth);
    else view.zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY)) / 400), timeAt(place(event).x));
  }, {passive: false});
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = place(event), before = pointers.get(event.pointerId);
    if (before && pointers.size === 1) {
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (moved > 3) view.pan((before.x - now.x) / canvas.clientWidth);
    } else if (before && pointers.size === 2) {
      moved = Infinity;
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      const old = Math.max(10, Math.abs(before.x - other.x)), fresh = Math.max(10, Math.abs(now.x - other.x));
      view.zoom(old / fresh, timeAt((now.x + other.x) / 2));
    }
    if (before) pointers.set(event.pointerId, now);
    else hover(timeAt(now.x), now, event);
  });
  const up = (event) => {
    if (pointers.delete(event.pointerId) && moved <= 3 && event.type === "pointerup") {
      const now = place(event);
      click(timeAt(now.x), now, event);
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", (event) => {
    if (!pointers.size) hover(null, place(event), event);
  });
  canvas.addEventListener("dblclick", (event) => view.zoom(event.shiftKey ? 2.5 : 0.4, timeAt(place(event).x)));
}

// A telephone: charts of fixed proportions are drawn narrower, so that their texts stay readable.
function isSmall() { return window.innerWidth < 640; }

// The names of a view's ticks along y, and a line from `top` down at each.
function drawTicks(context, view, width, y, top, bottom) {
  const scale = width / (view.to - view.from), marks = ticks(view.from, view.to, width / 110);
  const apart = marks.length > 1 ? marks[1] - marks[0] : view.to - view.from;
  for (const t of marks) {
    const x = Math.round((t - view.from) * scale), text = tickText(t, apart);
    context.fillStyle = colours.css("grid");
    context.fillRect(x, top, 1, bottom - top);
    context.fillStyle = colours.css("quiet");
    if (x + 3 + context.measureText(text).width <= width) context.fillText(text, x + 3, y);
  }
}

// A line across a chart at the shared cursor.
function drawCursor(context, view, width, height) {
  if (view.cursor === null || view.cursor < view.from || view.cursor > view.to) return;
  const x = ((view.cursor - view.from) / (view.to - view.from)) * width;
  context.fillStyle = colours.css("cursor");
  context.fillRect(Math.round(x) - 0.5, 0, 1, height);
}

function showTip(event, ...lines) {
  const tip = document.getElementById("tip");
  tip.hidden = lines.length === 0;
  if (tip.hidden) return;
  tip.replaceChildren(...lines.map((line, k) => el(k === 0 ? "strong" : "div", {}, line)));
  const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const y = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 12 : below;
  tip.style.left = Math.max(4, x) + "px";
  tip.style.top = Math.max(4, y) + "px";
}
