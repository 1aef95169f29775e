"""Headless Chromium for tests of the report: opens a page from disk and notes what it asks for and complains about."""
import json
import os
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service


class Browser:
    def __init__(self, chromium, driver, width=1360, height=900):
        options = Options()
        options.binary_location = chromium
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                     f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.size(width, height)

    def close(self):
        self.driver.quit()

    def size(self, width, height, dark=False, mobile=False):
        self.command("Emulation.setDeviceMetricsOverride",
                     {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile})
        self.command("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def command(self, name, values):
        return self.driver.execute_cdp_cmd(name, values)

    def run(self, script, *values):
        return self.driver.execute_script(script, *values)

    def run_async(self, script, *values):
        return self.driver.execute_async_script(script, *values)

    def open(self, path):
        self.driver.get("file://" + os.path.abspath(path))
        self.until("return document.documentElement.dataset.ready === 'yes' || !!document.querySelector('.failed')")
        self.settle()

    def until(self, script, seconds=30):
        end = time.time() + seconds
        while not self.run(script):
            if time.time() > end:
                raise AssertionError("not within %d s: %s" % (seconds, script))
            time.sleep(0.02)

    def settle(self):
        """Two frames later everything that was asked for is drawn."""
        self.run_async("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def addresses(self):
        """What the page asked for since the last call, but for itself and its own data."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    found.append(url)
        return found

    def mouse(self, kind, x, y, **values):
        self.command("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **values})

    def place(self, selector):
        """The box of an element in the window, scrolled to."""
        return self.run("const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
                        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]", selector)

    def click_at(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def press(self, key):
        self.command("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "text": key if len(key) == 1 else ""})
        self.command("Input.dispatchKeyEvent", {"type": "keyUp", "key": key})
        self.settle()
