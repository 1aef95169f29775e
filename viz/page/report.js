// Puts the page together from the data that it holds.
"use strict";

const THEMES = [["", "system"], ["light", "light"], ["dark", "dark"]];

function themeButton(redraw) {
  const b = document.getElementById("theme");
  let k = 0;
  b.addEventListener("click", () => {
    k = (k + 1) % THEMES.length;
    document.documentElement.style.colorScheme = THEMES[k][0];
    b.textContent = "Colours: " + THEMES[k][1];
    redraw();
  });
}

// The prediction that the page shows: of simulate the answer, of plan a part of it.
function predictionOf(report) {
  const answer = report.answer || {};
  return answer.prediction || report.prediction || report.shown_prediction ||
      (answer.step_time_s !== undefined ? answer : null);
}

function stepChoice(names, view, showStep) {
  const select = el(
      "select", {"aria-label": "Whose step is drawn", onchange: () => showStep(Number(select.value))},
      ...names.map((name, k) => el("option", {value: k}, k === 0 ? name + " (shown in the rest of the page)" : name)));
  view.listen(() => {
    const k = String(names.indexOf(view.step.name));
    if (select.value !== k) select.value = k;
  });
  return el("label", {class: "choice"}, "Step of ", select);
}

// Whose measured step is drawn below the predicted one: steps[0] is the prediction.
function rankChoice(names, view, showRank) {
  if (names.length < 3) return names[1];
  const select = el(
      "select", {"aria-label": "Whose measured step is drawn", onchange: () => showRank(Number(select.value))},
      ...names.slice(1).map((name, k) => el("option", {value: k + 1}, name)));
  return select;
}

async function main() {
  const report = await unpack("report");
  const view = report.steps.length ? new View(new Step(report.steps[0], await unpack("step-0"))) : null;
  const redraw = () => {
    colours.forget();
    if (view) view.changed();
  };
  themeButton(redraw);
  const prediction = predictionOf(report);
  const measurement = report.measurement || null;
  showSummary(report, prediction, measurement);
  if (report.command === "accuracy") showAccuracy(report.answer);
  if (report.validation) showValidation(report.validation, measurement && measurement.observed);
  if (report.answer && report.answer.scored_plans && prediction)
    showPlans(report, prediction.memory_limit_bytes, (k) => showStep(k));
  const views = [view], charts = [], steps = new Map([[0, view && view.step]]);
  const showStep = async (k) => {
    if (!steps.has(k)) steps.set(k, new Step(report.steps[k], await unpack("step-" + k)));
    view.show(steps.get(k));
    for (const chart of charts) chart.refresh();
  };
  if (view) {
    const chart = showTimeline(view);
    new OperationPanel(view, chart);
    charts.push(chart);
    const last = report.steps.length - 1;
    if (measurement) {
      const has = wasMeasured(measurement, report.validation);
      const below = report.steps[0] === "predicted" && last > 0 ?
          new View(new Step(report.steps[1], await unpack("step-1"))) :
          view;
      if (below !== view) {
        views.push(below);
        charts.push(addTimeline(chart, below, rankChoice(report.steps, below, (k) => showRank(k))));
        new OperationPanel(below, chart);
      } else if (last > 0) {
        chart.element.querySelector(".tools").before(stepChoice(report.steps, view, showStep));
      }
      if (has.memory) charts.push(showMeasuredMemory(below, measurement, report.memory_report));
      const showRank = async (k) => {
        if (!steps.has(k)) steps.set(k, new Step(report.steps[k], await unpack("step-" + k)));
        below.show(steps.get(k));
        for (const c of charts.slice(1)) c.refresh();
        chart.differences();
      };
    } else if (prediction) charts.push(showMemory(view, prediction, report.memory_report));
    if (report.steps.length > 1 && !measurement)
      chart.element.querySelector(".tools").before(stepChoice(report.steps, view, showStep));
  }
  if (measurement && !view)
    section(
        "timeline", "Timeline",
        el("p", {},
           "No timelines to draw: they need a prediction that says in which order its operations are issued, and a " +
               "rank whose operations were all observed, in that order."));
  if (measurement) showSteps(measurement, prediction, report.validation);
  if (prediction && !measurement) showWhatIf(report, prediction);
  if (report.modules) showModules(view, report.modules, report.units || []);
  if (report.units) showUnits(view, report.units);
  if (prediction && prediction.by_action && !measurement) showKinds(prediction);
  showProvenance(report, (measurement || prediction || {}).provenance);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    drawNow(views);
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    drawNow(views);
  });
  document.documentElement.dataset.ready = "yes";
  window.report = {data: report, view, charts};  // for the curious, and for tests
}

function drawNow(views) {
  colours.forget();
  for (const view of views)
    if (view)
      for (const listener of view.listeners) listener(view);
}

main().catch((error) => {
  document.getElementById("page").append(
      el("p", {class: "failed"}, "This report could not be shown: " + error.message));
  throw error;
});
