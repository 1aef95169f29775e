"""Tests of the report's parts: the module tree, what-if sliders, the certificate, differences between timelines. And
that what is written parses. A part of the class in report_test.py."""
import html.parser
import json
import os
import subprocess
import xml.etree.ElementTree

SIMULATED = "--model llama3-8b --cluster dgx-h100 --gpus 8 --seq-len 2048 --activation-checkpointing full".split()


class Strict(html.parser.HTMLParser):
    """Raises for a tag that is not closed, or not the one that was opened last."""
    EMPTY = {"meta", "link", "br", "input", "img", "hr"}

    def __init__(self):
        super().__init__()
        self.open, self.count = [], 0

    def handle_starttag(self, tag, attributes):
        self.count += 1
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, "</%s> closes nothing" % tag


class PartsTests:
    def slide(self, label, value):
        self.browser.run("const i = [...document.querySelectorAll('#what-if input')]"
                         ".find((i) => i.getAttribute('aria-label').startsWith(arguments[0])); i.value = arguments[1];"
                         "i.dispatchEvent(new Event('input'))", label, value)

    def what_if(self):
        b = self.browser
        return dict(zip(b.texts("#what-if-answer dt"), b.texts("#what-if-answer dd")))

    def test_modules_fold_open_and_light(self):
        b = self.browser
        path, answer = self.page("simulate", *SIMULATED)
        b.open(path)
        data = b.run("return window.report.data")
        rows = data["modules"]
        root = rows[0]
        self.same(root["parameters"], sum(u["parameters"] for u in data["units"] if u["unit"] is not None),
                  "parameters of the model")
        kernels = {}
        for row in answer["by_action"]:
            kernels[row["what"].split()[0]] = kernels.get(row["what"].split()[0], 0) + row["seconds"]
        loss = b.run("const s = window.report.view.step, sums = {}; for (let i = 0; i < s.count; ++i) {"
                     " const m = /^(\\w+) \\w+ loss op/.exec(s.text(i)); if (m)"
                     " sums[m[1]] = (sums[m[1]] || 0) + (s.end[i] - s.start[i]) / 1e9; } return sums")
        self.near(root["forward_s"], kernels["forward"] - loss.get("forward", 0), "forward of the model", 1e-6)
        self.near(root["recompute_s"], kernels["recompute"], "recomputation of the model", 1e-6)
        blocks = [r for r in rows if r.get("recomputed")]
        self.same(len(blocks), 32, "recomputed blocks")
        folded = [t for t in b.texts("#modules tbody td:first-child") if "more like this" in t]
        self.same(len(folded), 1, "rows that stand for several")
        assert folded[0].endswith("1 to 31: 31 more like this LlamaDecoderLayer"), folded
        count = len(b.texts("#modules tbody tr"))
        row = "[...document.querySelectorAll('#modules tbody tr')].find((r) => r.%s)"
        b.run(row % "textContent.includes('more like this')" + ".querySelector('button').click()")
        self.same(len(b.texts("#modules tbody tr")), count + 30, "rows after all alike are shown")
        b.run(row % "node.name === 'model.layers.3'" + ".click()")
        b.settle()
        lit = b.run("const v = window.report.view; return [...new Set([...v.lit.keys()].filter((i) => v.lit[i])"
                    ".map((i) => v.step.text(i)))]")
        assert lit and all("model.layers.3" in text for text in lit), lit[:5]
        assert any(text.startswith("all_gather unit") for text in lit), "the unit's collectives are not lit"
        titles = b.texts("#modules th")
        sums = {"all-gather": "all_gather_s", "reduce-scatter": "reduce_scatter_s", "at the peak": "peak_bytes"}
        for title, key in sums.items():
            self.same(b.run("const t = document.querySelector('#modules tbody tr').children[arguments[0]].textContent;"
                            "const u = window.report.data.units.filter((u) => u.unit !== null)"
                            ".reduce((s, u) => s + u[arguments[1]], 0);"
                            "return t === (arguments[1] === 'peak_bytes' ? bytes : seconds)(u)",
                            titles.index(title), key), True, title + " of the model: each unit once")
        names = ("return [...document.querySelectorAll('#modules tbody tr')].filter((r) => r.getAttribute('aria-level')"
                 " === '3').map((r) => r.node.text)")
        plain = b.run(names)
        click = ("[...document.querySelectorAll('#modules th button')]"
                 ".find((e) => e.textContent === 'parameters').click()")
        b.run(click)
        sizes = {r["name"].split(".")[-1]: r["parameters"] for r in rows if r["depth"] == 2}
        self.same(b.run(names), sorted(plain, key=lambda n: -sizes[n]), "modules by size")
        b.run(click)
        self.same(b.run(names), sorted(plain, key=lambda n: sizes[n]), "modules by size, the smallest first")
        b.run(click)
        self.same(b.run(names), plain, "modules as the model has them")
        b.run("document.querySelector('#modules tbody tr').focus()")
        b.press("ArrowLeft")
        self.same(len(b.texts("#modules tbody tr")), 1, "rows of a closed tree")

    def test_what_if_shows_simulations(self):
        b = self.browser
        path, answer = self.page("simulate", *SIMULATED, "--price", "2.5")
        b.open(path)
        shown = self.what_if()
        self.near(float(shown["Cost"].split()[0].replace("per", "")), answer["cost"]["per_1e9_tokens"], "cost")
        described = json.loads(subprocess.run([self.program, "show", "cluster", "dgx-h100", "--file"],
                                              capture_output=True, text=True).stdout)
        points = b.run("return window.report.data.what_if_0.points")
        one = [p for p in points if p["factor"] == 1][0]
        self.same(one["step_time_s"], answer["step_time_s"], "the step at the cluster's own bandwidth")
        for point in (p for p in points if p["factor"] in (0.5, 2)):  # the same by the command, on such a cluster
            described["name"] = "x%s" % point["factor"]
            described["intra_bus"] = "%.9gGB/s" % (point["bytes_per_s"] / 1e9)
            file = os.path.join(self.folder, described["name"] + ".json")
            with open(file, "w") as f:
                json.dump(described, f)
            flags = [file if word == "dgx-h100" else word for word in SIMULATED]
            made = self.made("simulate", *flags, "--json=brief")
            self.near(point["step_time_s"], json.loads(made.stdout)["step_time_s"], described["name"], 1e-6)
        self.slide("Bandwidth", "-1")
        half = [p for p in points if p["factor"] == 0.5][0]["step_time_s"]
        b.settle()
        assert "simulated" in self.what_if()["Step"] and "between" not in self.what_if()["Step"], self.what_if()
        self.slide("Bandwidth", "-0.75")
        between = b.run("return atBandwidth(window.report.data.what_if_0.points, 2 ** -0.75).step_time_s")
        assert one["step_time_s"] < between < half, (one, between, half)
        assert "between two simulations" in self.what_if()["Step"], self.what_if()
        assert "interpolated" in b.texts("#what-if .reading")[0]
        self.slide("Memory", "0.25")
        assert "does not fit" in self.what_if()["Peak memory"], self.what_if()

    def test_what_if_limits_choose_among_scored_plans(self):
        b = self.browser
        path, answer = self.page("plan", *SIMULATED[:-2])
        b.open(path)
        for part in ("0.6", "2"):
            self.slide("Memory", part)
            limit = round(float(part) * answer["prediction"]["memory_limit_bytes"])
            fitting = [p for p in answer["scored_plans"] if p["peak_total_bytes"] <= limit]
            best = max(p["tokens_per_s"] for p in fitting)
            self.same(self.what_if()["Throughput"].split()[0], "{:,.0f}".format(best), "throughput at %s" % part)
        self.slide("Memory", "0.25")
        self.slide("Price", "3")
        limit = 0.25 * answer["prediction"]["memory_limit_bytes"]
        if not any(p["peak_total_bytes"] <= limit for p in answer["scored_plans"]):
            assert b.texts("#what-if .reading")[0].startswith("None of the"), b.texts("#what-if .reading")

    def test_certificate_where_the_answer_has_one(self):
        b = self.browser
        path, answer = self.page("plan", *SIMULATED[:-2])
        b.open(path)
        self.same(len(b.texts("#certificate")), int("certificate" in answer), "certificates")
        said = b.run("return certificateBox({bound_seconds: 1.5, gap: 0.018, plans: 4.2e27, kind: '<b>x</b>',"
                     " assumptions: ['no retries', '<i>y</i>']}).textContent")
        for words in ("any of 4 x 10²⁷ plans takes less than 1.50 s", "within 1.8 % of the best", "<b>x</b>",
                      "<i>y</i>"):
            assert words in said, (words, said)
        assert "no bound" in b.run("return certificateBox({gap: null}).textContent")
        self.same(b.run("return certificateBox(undefined)"), None, "no certificate")

    def test_differences_are_lit(self):
        b = self.browser
        measured = self.tiny_run()
        self.made("validate", "p.json", "m.json", "--report", "validate.html")
        for page in ("run.html", "validate.html"):
            b.open(os.path.join(self.folder, page))
            self.same(b.texts("#timeline h3"), ["predicted", "measured on rank 0measured on rank 1"], "timelines")
            steps = b.run("const at = (v) => ({start: [...v.step.start], end: [...v.step.end],"
                          " lit: v.lit && [...v.lit]});"
                          "return [at(window.report.view), at(window.report.charts[1].view)]")
            spans = measured["ranks"][0]["timeline"]["spans_s"]
            assert all(abs(s - 1e9 * t) <= 1 for s, t in zip(steps[1]["start"], spans[::2])), "times of rank 0"
            self.same(steps[0]["lit"], steps[1]["lit"], "lit operations")
            off = [abs((e0 - s0) - (e1 - s1)) for s0, e0, s1, e1 in
                   zip(steps[0]["start"], steps[0]["end"], steps[1]["start"], steps[1]["end"])]
            lit = [d for d, on in zip(off, steps[0]["lit"]) if on]
            dark = [d for d, on in zip(off, steps[0]["lit"]) if not on]
            assert sum(lit) >= 0.8 * sum(off) and min(lit) >= max(dark), "not the largest differences are lit"
            tip = b.run("return shortDescription(window.report.charts[1].view.step, 3)")
            assert any(line.startswith("predicted: ") for line in tip), tip
            b.run("const s = document.querySelector('select[aria-label^=Whose]'); s.value = '2';"
                  "s.dispatchEvent(new Event('change'))")
            b.until("return window.report.charts[1].view.step.name === 'measured on rank 1'")
            second = b.run("return [...window.report.charts[1].view.step.start]")
            spans = measured["ranks"][1]["timeline"]["spans_s"]
            assert all(abs(s - 1e9 * t) <= 1 for s, t in zip(second, spans[::2])), "times of rank 1"
            b.run("[...document.querySelectorAll('#timeline button')]"
                  ".find((e) => e.textContent === 'Differences').click()")
            b.settle()
            self.same(b.run("return window.report.view.lit"), None, "lit after the button")
        self.same(b.texts("#memory .failed") + b.texts(".failed"), [], "failures")
        assert "at every operation" in b.texts("#counted")[0], b.texts("#counted")

    def test_what_is_written_parses(self):
        svg = os.path.join(self.folder, "step.svg")
        self.tiny_run()
        pages = [self.page("simulate", *SIMULATED, "--svg", svg)[0], os.path.join(self.folder, "run.html")]
        for page in pages:
            parser = Strict()
            with open(page, encoding="utf-8") as f:
                parser.feed(f.read())
            parser.close()
            assert parser.count > 10 and not parser.open, parser.open
        root = xml.etree.ElementTree.parse(svg).getroot()
        self.same(root.tag, "{http://www.w3.org/2000/svg}svg", "the picture")
        self.browser.driver.get("file://" + svg)
        self.same(self.browser.run("return document.documentElement.getBBox().width > 900"), True, "the picture's size")
