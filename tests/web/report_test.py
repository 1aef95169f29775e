"""Opens reports in a real browser and checks what they show against what --json prints.

    python report_test.py PROGRAM CHROMIUM DRIVER [name of a test ...]
"""
import json
import os
import subprocess
import sys
import tempfile
import traceback

from browser import Browser
from parts_tests import PartsTests

GIB = 1024 ** 3
EIGHT_B = "--model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 8192".split()
FRAMES = 240
LARGE = "--model llama3.1-405b --cluster dgx-h100 --gpus 512 --seq-len 8192 --grad-accum 16".split()


class Tests(PartsTests):
    def __init__(self, program, chromium, driver, folder):
        self.program, self.folder = program, folder
        self.browser = Browser(chromium, driver)

    def page(self, command, *flags, code=0):
        """The report of a command, and what --json says of the same."""
        path = os.path.join(self.folder, "%s-%d.html" % (command, len(os.listdir(self.folder))))
        answer = subprocess.run([self.program, command, *flags, "--json", "--report", path], capture_output=True,
                                text=True, cwd=self.folder)
        assert answer.returncode == code, answer.stderr
        return path, json.loads(answer.stdout)

    def same(self, shown, expected, what):
        assert shown == expected, "%s: the page shows %r, expected %r" % (what, shown, expected)

    def near(self, shown, expected, what, within=0.006):
        assert abs(shown - expected) <= within * abs(expected), "%s: the page shows %r of %r" % (what, shown, expected)

    def tiles(self):
        return dict(zip(self.browser.texts(".tile dt"), self.browser.texts(".tile dd")))

    def made(self, *words):
        return subprocess.run([self.program, *words], capture_output=True, text=True, cwd=self.folder)

    def tiny_run(self):
        """The measurement of a small model on two ranks: p.json, m.json and run.html in the folder, made once."""
        for words in ("calibrate --backend host --ranks 2 --budget 4s -o costs.json",
                      "plan --model tiny-llama --cluster host --gpus 2 --costs costs.json --seq-len 64 -o tiny.json",
                      "simulate --plan tiny.json --model tiny-llama --cluster host --costs costs.json -o p.json",
                      "run --plan tiny.json --model tiny-llama --backend host --prediction p.json -o m.json --steps 6 "
                      "--report run.html"):
            if os.path.exists(os.path.join(self.folder, "run.html")):
                break
            made = self.made(*words.split())
            assert made.returncode == 0, made.stderr
        with open(os.path.join(self.folder, "m.json")) as f:
            return json.load(f)

    def compared_with(self, measurement):
        """Opens the page of `validate` for this measurement of tiny_run(); returns what --json says."""
        with open(os.path.join(self.folder, "other.json"), "w") as f:
            json.dump(measurement, f)
        answer = self.made("validate", "p.json", "other.json", "--json", "--report", "other.html")
        assert answer.returncode in (0, 1), answer.stderr
        self.browser.open(os.path.join(self.folder, "other.html"))
        self.same(self.browser.texts(".failed"), [], "failure")
        return json.loads(answer.stdout)

    # --- tests

    def test_simulate_shows_what_json_says(self):
        b = self.browser
        path, answer = self.page("simulate", *EIGHT_B)
        b.open(path)
        assert b.texts("#verdict")[0].replace("Fits", "").strip(), "no verdict"
        tiles = self.tiles()
        self.near(float(tiles["Step"].split()[0]), answer["step_time_s"], "step")
        self.near(float(tiles["Peak memory"].split()[0]), answer["peak_total_bytes"] / GIB, "peak")
        self.near(float(tiles["MFU"].split()[0]), 100 * answer["mfu"], "MFU")
        self.near(float(tiles["Exposed communication"].split()[0]) / 1e3, answer["exposed_communication_s"], "exposed")
        data = b.run("return window.report.data.answer")
        for key in ("step_time_s", "where", "by_action", "by_unit", "peak_made_of_bytes", "provenance",
                    "critical_path"):
            self.same(data[key], answer[key], key)
        steps = b.run("const s = window.report.view.step; return {start: Array.from(s.start), end: Array.from(s.end)}")
        spans = answer["timeline"]["spans_s"]  # start, end, start, end ...
        self.same(2 * len(steps["start"]), len(spans), "operations")
        for i, (start, end) in enumerate(zip(steps["start"], steps["end"])):
            assert abs(start - 1e9 * spans[2 * i]) <= 1 and abs(end - 1e9 * spans[2 * i + 1]) <= 1, (i, start, end)
        exposed = b.run("const s = window.report.view.step; let n = 0; const c = s.columns;"
                        "for (let k = 0; k < c.exposed_ns.length; ++k)"
                        "  if (c.parts[c.exposed_part[k]].startsWith('exposed')) n += c.exposed_ns[k]; return n / 1e9")
        self.near(exposed, answer["exposed_communication_s"], "marked as exposed", 1e-5)
        peak = b.run("const m = new MemoryOfStep(window.report.view.step); return m.total[m.peakRow]")
        self.same(peak, max(answer["memory"]["steady_step"]["points_bytes"][::2]), "peak of the steady step")

    def test_timeline_zooms_pans_and_tells(self):
        b = self.browser
        path, _ = self.page("simulate", *EIGHT_B)
        b.open(path)
        left, top, width, height = b.place("#timeline canvas")
        whole = b.run("const v = window.report.view; return v.to - v.from")
        b.mouse("mouseMoved", left + width / 2, top + 60)
        b.settle()
        tip = b.run("const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent")
        assert "micro-batch 1" in tip, "no tip over an operation: %r" % tip
        tip = b.run("const s = window.report.view.step; return shortDescription(s, [...Array(s.count).keys()]"
                    ".find((i) => s.text(i) === 'all_gather unit 20 (model.layers.20)'))")
        for words in ("8 ranks x 27,264,000 of bf16", "waited for: ", "is waited for by: gather_copy_out unit 20"):
            assert any(words in line for line in tip), (words, tip)
        tip = b.run("const s = window.report.view.step; return shortDescription(s, [...Array(s.count).keys()]"
                    ".find((i) => s.text(i).startsWith('forward linear model.layers.3.mlp.up_proj')))")
        assert "8,192 x 4,096, weight 14,336 x 4,096 -> 8,192 x 14,336" in tip, tip
        late = b.run("const s = window.report.view.step; return [...Array(s.count).keys()].filter((i) =>"
                     " s.end[i] > s.start[i] && s.columns.lanes[s.lane[i]] !== 'host' &&"
                     " s.start[i] - heldBackBy(s, i).at > 1000).map((i) => s.text(i))")
        self.same(late, [], "operations that begin later than what is said to hold them back")
        cursors = b.texts(".reading")[0]
        assert cursors.startswith("At "), "the cursor is not in the memory chart: %r" % cursors
        b.mouse("mouseWheel", left + width / 2, top + 60, deltaX=0, deltaY=-200, modifiers=2)
        b.settle()
        zoomed = b.run("const v = window.report.view; return [v.from, v.to]")
        assert zoomed[1] - zoomed[0] < 0.8 * whole, "Ctrl and the wheel do not zoom"
        b.mouse("mousePressed", left + 400, top + 60, button="left", clickCount=1)
        for x in range(400, 290, -10):
            b.mouse("mouseMoved", left + x, top + 60, button="left", buttons=1)
        b.mouse("mouseReleased", left + 290, top + 60, button="left", clickCount=1)
        b.settle()
        dragged = b.run("const v = window.report.view; return [v.from, v.to]")
        assert dragged[0] > zoomed[0], "dragging does not pan"
        b.click_at(left + width / 2, top + 60)
        operation = b.texts(".operation h3")
        assert operation and operation[0].startswith("Operation "), "a click says nothing"
        assert "demand" in b.texts(".operation")[0]
        chosen = b.run("return window.report.view.chosen")
        b.press("n")
        self.same(b.run("const v = window.report.view; return v.step.lane[v.chosen]"),
                  b.run("return window.report.view.step.lane[arguments[0]]", chosen), "lane of the next operation")
        assert b.run("return window.report.view.chosen") != chosen, "N does not go on"
        b.press("c")
        self.same(b.run("return window.report.view.litName"), "critical path", "lit")
        b.press("0")
        shown, low, high = b.run("const v = window.report.view; return [v.to - v.from, v.low, v.high]")
        self.near(shown, high - low, "whole step, with what the host issued before it began", 1e-6)
        assert low <= 0 and high - low >= 0.98 * whole, (low, high, whole)
        b.press("Escape")
        self.same(b.run("return window.report.view.chosen"), None, "chosen")

    def test_units_sort_and_light(self):
        b = self.browser
        path, answer = self.page("simulate", *EIGHT_B)
        b.open(path)
        rows = b.texts("#units tbody tr")
        self.same(len([r for r in rows]), len(b.run("return window.report.data.units")), "units")
        total = sum(u["compute_s"] for u in b.run("return window.report.data.units"))
        self.near(total, sum(u["compute_s"] for u in answer["by_unit"]), "compute of all units", 1e-9)
        column = b.texts("#units th").index("compute, copies")
        click = "document.querySelectorAll('#units th button')[arguments[0]].click()"
        values = ("return [...document.querySelectorAll('#units tbody tr')]"
                  ".map((r) => r.children[arguments[0]].textContent)")
        b.run(click, column)
        largest = b.run(values, column)[0]
        b.run(click, column)
        smallest = [v for v in b.run(values, column) if v][0]
        assert seconds(largest) > seconds(smallest), "the table of units does not sort"
        b.run("document.querySelector('#units tbody tr').click()")
        b.settle()
        assert "unit" in b.run("return window.report.view.litName"), "a unit does not light its operations"

    def test_plan_shows_every_scored_plan(self):
        b = self.browser
        path, answer = self.page("plan", *EIGHT_B)
        b.open(path)
        self.same(b.run("return document.querySelectorAll('#plans circle').length"), len(answer["scored_plans"]),
                  "plans drawn")
        assert answer["scored"] <= len(answer["scored_plans"]) <= answer["scored"] + 1, "plans in the JSON"
        said = b.texts(".details p")
        likely = answer["prediction"]["likely_80_percent"]
        assert any(line.startswith("Likely (80 %): step ") for line in said) and likely, said
        assert any(line.startswith("Searched: ") and "considered" in line for line in said), said
        front = sorted((p for p in answer["scored_plans"] if not any(
            o["tokens_per_s"] >= p["tokens_per_s"] and o["peak_total_bytes"] <= p["peak_total_bytes"] and
            (o["tokens_per_s"], o["peak_total_bytes"]) != (p["tokens_per_s"], p["peak_total_bytes"])
            for o in answer["scored_plans"])), key=lambda p: -p["tokens_per_s"])
        shown = b.run("return paretoFront(window.report.data.answer.scored_plans)"
                      ".map((p) => [p.tokens_per_s, p.peak_total_bytes])")
        self.same(shown, [list(t) for t in dict.fromkeys((p["tokens_per_s"], p["peak_total_bytes"]) for p in front)],
                  "front")
        names = b.run("return window.report.data.steps")
        assert 2 <= len(names) <= 6, names
        b.run("document.querySelector('#plans circle[aria-label^=\"' + arguments[0] + ':\"]')"
              ".dispatchEvent(new MouseEvent('click'))", names[1])
        lost = [p["why_lost"] for p in answer["scored_plans"] if p["label"] == names[1]][0]
        assert lost in b.texts(".chosen-plan")[0], "why the plan lost is not said"
        self.same(b.run("return document.querySelectorAll('#plans circle[tabindex=\"0\"]').length"), 1, "stops of Tab")
        order = sorted(answer["scored_plans"], key=lambda p: p["tokens_per_s"])
        place = [p["label"] for p in order].index(names[1])
        b.run("document.querySelector('#plans circle[tabindex=\"0\"]').focus()")
        b.press("ArrowRight")
        self.near(b.run("const m = document.activeElement.getAttribute('aria-label'); return window.report.data.answer"
                        ".scored_plans.find((p) => m.startsWith(p.label + ':')).tokens_per_s"),
                  order[place + 1]["tokens_per_s"], "the next plan by speed", 1e-12)
        b.press("ArrowLeft")
        b.run("document.querySelector('.chosen-plan button').click()")
        b.until("return window.report.view.step.name === %s" % json.dumps(names[1]))
        rival = [p for p in answer["scored_plans"] if p["label"] == names[1]][0]
        self.near(b.run("return window.report.view.step.period") / 1e9, rival["step_time_s"], "step of the rival", 1e-6)
        b.settle()
        assert names[1] in b.texts("#memory .another:not([hidden])")[0], "whose memory is drawn is not said"
        self.same(b.run("return window.report.charts[1].shownLimits.map((l) => l.short)"), ["limit"],
                  "limits of a rival")
        b.run("document.querySelector('#timeline select').value = 0;"
              "document.querySelector('#timeline select').dispatchEvent(new Event('change'))")
        b.until("return document.querySelector('#memory .another').hidden")
        self.same(b.run("return window.report.charts[1].shownLimits.length"), 2, "limits of the chosen plan")

    def test_nothing_fits_is_an_answer(self):
        b = self.browser
        path, answer = self.page("plan", *EIGHT_B, "--memory-limit", "12GiB", "--micro-batch", "4", code=1)
        b.open(path)
        assert b.texts("#verdict")[0].startswith("Does not fit"), b.texts("#verdict")
        self.same(b.run("return window.report.data.steps[0]"), answer["least"]["label"], "the plan that needs least")

    def test_names_with_markup_stay_text(self):
        b = self.browser
        name = "<img src=x onerror=window.broken=1> & \"quoted\" '</script>"
        folder = os.path.join(self.folder, "<b>model & co")
        os.makedirs(folder, exist_ok=True)
        cluster = subprocess.run([self.program, "show", "cluster", "dgx-h100", "--file"], capture_output=True,
                                 text=True)
        described = json.loads(cluster.stdout)
        described["name"] = name
        file = os.path.join(folder, "cluster.json")
        with open(file, "w") as f:
            json.dump(described, f)
        path, _ = self.page("simulate", "--model", "tiny-llama", "--cluster", file, "--gpus", "8", "--seq-len", "64")
        b.open(path)
        self.same(b.run("return document.querySelectorAll('img, b b').length"), 0, "elements from text")
        self.same(b.run("return window.broken === undefined"), True, "no script ran")
        assert "<b>model & co" in b.texts("#provenance .command code")[0], "the path is not shown as text"
        assert any(name in line for line in b.texts(".details p") + b.texts("#provenance td")), "the name is not shown"

    def test_fits_a_telephone_and_both_colour_schemes(self):
        b = self.browser
        path, _ = self.page("plan", *EIGHT_B)
        for width, height, dark in ((360, 740, False), (360, 740, True), (768, 1024, True), (1920, 1080, False)):
            b.size(width, height, dark, width < 700)
            b.open(path)
            over = b.run("return document.documentElement.scrollWidth - window.innerWidth")
            assert over <= 0, "%d pixels too wide at %d" % (over, width)
            light = b.run("const m = getComputedStyle(document.body).backgroundColor.match(/\\d+/g);"
                          "return Number(m[0]) > 128")
            self.same(light, not dark, "colours")
        b.size(1360, 900)

    def test_prints_on_paper(self):
        b = self.browser
        path, _ = self.page("simulate", *EIGHT_B)
        b.size(1360, 900, True)
        b.open(path)
        b.run("addEventListener('beforeprint', () => window.drawn = [...document.querySelectorAll('canvas')]"
              ".map((c) => [c.width, c.clientWidth, getComputedStyle(document.body).colorScheme]))")
        paper = b.command("Page.printToPDF", {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69})
        assert len(paper["data"]) > 20000, "an empty sheet"
        for pixels, width, scheme in b.run("return window.drawn"):
            assert 400 < width < 700 and abs(pixels - 3 * width) <= 3, ("drawn for a screen", pixels, width)
            self.same(scheme, "light", "colours on paper")
        after = b.run("const c = document.querySelector('#timeline canvas'); return [c.width, c.clientWidth]")
        assert after[0] == after[1] > 800, after
        b.size(1360, 900)

    def test_run_and_validate_compare(self):
        b = self.browser
        measured = self.tiny_run()
        compared = json.loads(self.made("validate", "p.json", "m.json", "--json", "--report", "validate.html").stdout)
        for page in ("run.html", "validate.html"):
            b.open(os.path.join(self.folder, page))
            self.same(b.run("return window.report.data.validation"), compared, "validation")
            self.same(b.run("return window.report.data.measurement.steps_s"), measured["steps_s"], "steps")
            self.same(b.run("return document.querySelectorAll('#distribution rect').length") > 0, True, "distribution")
            self.same(b.run("return [...distributionChart('d', [1, 1, 2, 5], seconds, []).querySelectorAll('rect')]"
                            ".map((r) => Number(r.getAttribute('height')))"), [130, 65, 65], "two, one and one step")
            parts = b.run("const t = [...document.querySelectorAll('#compared table')]"
                          ".find((t) => t.caption.textContent === 'By rank');"
                          "return [...t.querySelectorAll('tbody tr')].map((r) => [1, 2].map((k) =>"
                          " parseFloat(r.children[k].style.getPropertyValue('--part')) || 0))")
            most = max(max(row["predicted"], row["measured"]) for row in compared["by_rank"])
            shown = sorted(p for pair in parts for p in pair)
            told = sorted(100 * row[k] / most for row in compared["by_rank"] for k in ("predicted", "measured"))
            assert all(abs(s - t) < 1e-3 for s, t in zip(shown, told)), "bars of two columns have two scales"
            self.near(seconds(" ".join(self.tiles()["Step, median"].replace("predicted", " ").split()[:2])),
                      measured["median_step_s"], "median")
            assert b.texts("#verdict")[0].replace("Within tolerance", "").replace("Outside tolerance", ""), "no verdict"
            b.open(os.path.join(self.folder, page))
        b.open(os.path.join(self.folder, "run.html"))
        self.same(b.run("return document.querySelectorAll('#timeline canvas').length"), 2, "timelines")
        spans = measured["ranks"][0]["timeline"]["spans_s"]
        last = b.run("const s = window.report.charts[1].view.step; return [s.start[s.count - 1], s.count]")
        self.same(last[1], len(spans) // 2, "operations")
        assert abs(last[0] - 1e9 * spans[-2]) <= 1, (last, spans[-2])
        assert "at every operation" in b.texts("#counted")[0], b.texts("#counted")
        b.run("window.report.view.set(0, 1e6)")
        b.settle()
        b.settle()
        self.same(b.run("const c = window.report.charts[1].view; return [c.from, c.to]"),
                  b.run("const v = window.report.view; return [v.from, v.to]"), "range of the second timeline")

    def test_validate_shows_only_what_was_compared(self):
        b = self.browser
        measured = self.tiny_run()
        for rank in measured["ranks"]:
            rank.update(order=[], moments_bytes=[], wire_bytes=0)
        for seen, compared in ((["all_gather"], (False, False)), (["all_gather", "step_time"], (True, False)),
                               (["all_gather", "memory", "step_time"], (True, True))):
            answer = self.compared_with({**measured, "observed": seen})
            self.same((answer["time_compared"], answer["memory_compared"]), compared, "compared")
            self.same("Step, median" in self.tiles(), compared[0], "tile of the step")
            self.same(len(b.texts("#steps svg[aria-label^=Measured]")), int(compared[0]), "chart of the steps")
            self.same("Peak allocated, rank 0" in self.tiles(), compared[1], "tile of the peak")
            assert "Sent in a step, rank 0" not in self.tiles()
            self.same(b.texts("#compared tbody tr td:first-child"),
                      ["step time"] * compared[0] + ["peak allocated, rank 0"] * compared[1], "rows")
            said = b.texts("#compared p")[0]
            self.same(["Step time: not compared" not in said, "Memory: not compared" not in said], list(compared), said)
            assert "at every operation" not in said, said
            assert b.texts("#timeline p")[0].startswith("No timelines"), "ranks whose order is not known are drawn"
        self.compared_with({**measured, "observed": ["all_gather"],
                                     "provenance": {**measured["provenance"], "cluster": ""}})
        assert b.texts("#title")[0].endswith(" on 2 ranks, measured"), b.texts("#title")

    def test_values_that_are_no_numbers(self):
        b = self.browser
        measured = self.tiny_run()
        self.compared_with({**measured, "losses": [None, *measured["losses"][1:-1], None]})
        assert self.tiles()["Loss"].startswith("NaN") and "first NaN" in self.tiles()["Loss"], self.tiles()["Loss"]
        self.same(len(b.texts("#steps svg")), 3, "charts of steps, their distribution and losses")
        self.compared_with({**measured, "losses": [None, None]})
        assert "none is a finite number" in b.texts("#steps")[0], b.texts("#steps")
        self.same(b.run("return [null, Infinity, NaN, 0.5, -0.5].map(signed)"),
                  ["-", "-", "-", "+50.0 %", "−50.0 %"], "differences")

    def test_axes_of_plans(self):
        b = self.browser
        path, _ = self.page("plan", *EIGHT_B)
        b.open(path)
        drawn = ("const [speeds, peaks] = arguments;"
                 "const plans = speeds.map((s, k) => ({label: 'p' + k, verdict: 'fits', tokens_per_s: s,"
                 " peak_total_bytes: peaks[k] * 2 ** 30, step_time_s: 1}));"
                 "const box = new PlanScatter(plans, 2 ** 36, () => 0).box;"
                 "return [...box.querySelectorAll('text')].map((t) => t.textContent)")
        texts = b.run(drawn, [0, 1000, 90000], [1, 20, 500])  # no speed at all: the axis is linear
        assert "20.0 K" in texts or "20 K" in texts, texts
        self.same([t for t in texts if t.endswith("iB") and not t.startswith("limit")],
                  ["%s GiB" % t for t in ("1.00", "2.00", "4.00", "8.00", "16.0", "32.0", "64.0", "128", "256", "512")],
                  "memory, logarithmic")
        most = 300000
        self.same(b.run("const all = Array.from({length: arguments[0]}, (_, k) => k);"
                        "return [lowest(all), highest(all)]", most), [0, most - 1], "of a long list")
        self.same(b.run("const t = sortableTable('long', [{title: 'n', number: true, text: String, value: (r) => r,"
                        "bar: 'forward'}], Array.from({length: arguments[0]}, (_, k) => k), {most: 5});"
                        "return t.querySelectorAll('tbody tr').length", most), 6, "rows and what shows all")

    def test_accuracy_filters(self):
        b = self.browser
        runs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "accuracy", "published_runs.csv")
        path, answer = self.page("accuracy", runs)
        b.open(path)
        rows = [r for r in answer["rows"] if r["measured_step_time_s"] and r["predicted_step_time_s"]]
        self.same(b.run("return document.querySelectorAll('#runs circle').length"), len(rows), "rows drawn")
        mean = 100 * answer["summary"]["all"]["step_time"]["mean_abs_error"]
        assert "mean error %.1f %%" % mean in b.texts("#errors")[0], (mean, b.texts("#errors"))
        b.run("const s = document.querySelector('select[aria-label=trust]'); s.value = 'A';"
              "s.dispatchEvent(new Event('change'))")
        trusted = sum(r["trust"] == "A" for r in rows)
        self.same(b.run("return document.querySelectorAll('#runs circle').length"), trusted, "rows of trust A")
        worst = max((r for r in rows if r["trust"] == "A"),
                    key=lambda r: abs(r["predicted_step_time_s"] / r["measured_step_time_s"] - 1))
        self.same(b.texts("#runs tbody tr td")[0], worst["id"], "the worst row")
        b.run("document.querySelector('#runs tbody tr').click()")
        assert worst["model"] in b.texts(".chosen-plan")[0]

    def test_smooth_with_a_large_step(self):
        b = self.browser
        path, answer = self.page("simulate", *LARGE, code=1)
        size = os.path.getsize(path)
        assert size < 3e6, "%d bytes" % size
        b.open(path)
        count = b.run("return window.report.view.step.count")
        b.place("#timeline canvas")
        b.command("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time, not that of the clock
        before = self.cpu_seconds(b)
        runs = [self.frames(b) for _ in range(3)]
        cpu = 1e3 * (self.cpu_seconds(b) - before) / (3 * FRAMES)
        best = min(runs, key=lambda frames: frames[1])
        load = os.getloadavg()[0]
        print("  %d operations, %.2f MB: frames of %.1f ms (median), %.1f ms (95 %%), %.1f ms (most); the page's own "
              "work %.1f ms a frame; load %.1f" % (count, size / 1e6, *best, cpu, load))
        assert cpu < 16.7, "the page works %.1f ms on a frame" % cpu
        if load > os.cpu_count():
            print("  the machine is busy: frames are judged by the page's own work alone")
        else:
            assert best[1] < 33.4, "95 %% of the frames take up to %.1f ms" % best[1]

    def cpu_seconds(self, b):
        return {m["name"]: m["value"] for m in b.command("Performance.getMetrics", {})["metrics"]}["TaskDuration"]

    def frames(self, b):
        """Milliseconds from frame to frame while zooming and panning: median, 95 %, most."""
        times = b.run_async("""
            const frames = arguments[0], done = arguments[1], view = window.report.view, times = [];
            let k = 0, before = null;
            const frame = (now) => {
              if (before !== null) times.push(now - before);
              before = now;
              if (++k > frames) { done(times); return; }
              if (k <= 80) view.zoom(0.95, view.step.high * 0.37);
              else if (k <= 160) view.pan(k % 40 < 20 ? 0.04 : -0.04);
              else view.zoom(1 / 0.95, view.step.high * 0.37);
              requestAnimationFrame(frame);
            };
            requestAnimationFrame(frame);""", FRAMES)
        times.sort()
        return times[len(times) // 2], times[int(0.95 * len(times))], times[-1]

    # --- what every test ends with

    def quiet(self):
        self.same(self.browser.complaints(), [], "console")
        self.same(self.browser.addresses(), [], "requests")


def seconds(text):
    value, unit = text.split()
    return float(value.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]


def main(program, chromium, driver, *names):
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(os.path.abspath(program), chromium, driver, folder)
        try:
            chosen = [n for n in dir(tests) if n.startswith("test_") and (not names or n in names)]
            for name in chosen:
                try:
                    getattr(tests, name)()
                    tests.quiet()
                    print("passed: " + name, flush=True)
                except Exception:
                    failed.append(name)
                    print("FAILED: " + name, flush=True)
                    traceback.print_exc()
                    tests.browser.complaints()
        finally:
            tests.browser.close()
    print("%d passed, %d failed" % (len(chosen) - len(failed), len(failed)))
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
