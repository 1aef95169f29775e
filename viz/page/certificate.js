// What is proven of all plans that could have been chosen: `certificate` of `plan --json`, where the search has one.
"use strict";

const CERTIFICATE_KNOWN =
    ["bound_seconds", "gap", "plans", "assumptions", "seconds_per_sequence", "kind_at_the_bound"];

// 4.1e27 -> "4 x 10²⁷"; 392 -> "392".
function plansText(n) {
  if (!(n >= 1e6)) return commas(n);
  const power = Math.floor(Math.log10(n));
  const digitsUp = String(power).replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
  return `${Math.floor(n / 10 ** power)} x 10${digitsUp}`;
}

function certificateBox(c) {
  if (!c || typeof c !== "object") return null;
  const bound = Number.isFinite(c.bound_seconds), plans = Number.isFinite(c.plans);
  const of = plans ? `any of ${plansText(c.plans)} plans` : "any plan of the space";
  const said = bound ? `No step of ${of} takes less than ${seconds(c.bound_seconds)} under this cost model` +
          (Number.isFinite(c.gap) ? `: the chosen plan is within ${percent(c.gap)} of the best.` : ".") :
                       "The search has no bound on what other plans could do.";
  const more = Object.entries(c).filter(
      ([key, value]) => !CERTIFICATE_KNOWN.includes(key) && value !== null && typeof value !== "object");
  const assumptions = Array.isArray(c.assumptions) ? c.assumptions : [];
  return el(
      "div", {class: "certificate", id: "certificate"}, el("h3", {}, "How much better a plan could be"),
      el("p", {}, said,
         Number.isFinite(c.seconds_per_sequence) ?
             ` A sequence takes at least ${seconds(c.seconds_per_sequence)}` +
                 (c.kind_at_the_bound ? `, of plans such as ${c.kind_at_the_bound}.` : ".") :
             ""),
      assumptions.length ? el("p", {class: "hint"}, "It holds under these assumptions:") : null,
      assumptions.length ? el("ul", {class: "columns"}, ...assumptions.map((a) => el("li", {}, String(a)))) : null,
      more.length ?
          el("table", {class: "plain"},
             el("tbody", {},
                ...more.map(
                    ([key, value]) => el(
                        "tr", {}, el("th", {scope: "row"}, key.replace(/_/g, " ")), el("td", {}, String(value)))))) :
          null);
}
