"""A headless Chromium, driven through its debugging pipe: NUL-terminated JSON on file descriptors 3 and 4."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((path for path in map(shutil.which, NAMES) if path), None)
DEADLINE_SECONDS = 60.0


class Browser:
    """One browser with one page. Every call waits for its answer, with a timeout."""

    def __init__(self, folder):
        ours, theirs = _pipe_pair(), _pipe_pair()
        self._read, self._write = theirs[0], ours[1]
        self._pid = _spawn(folder, ours[0], theirs[1])
        os.close(ours[0])
        os.close(theirs[1])
        self._buffer, self._count, self.events = b"", 0, []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Send a command and wait for its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda got: got.get("id") == self._count)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path):
        """Load a file and wait until it is loaded."""
        self.open_url(path.resolve().as_uri())

    def open_url(self, url):
        """Load an address and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._until(lambda got: got.get("method") == "Page.loadEventFired")

    def ask(self, expression):
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, condition):
        """Wait, frame by frame, until a JavaScript condition holds."""
        look = f"const look = () => ({condition}) ? done(true) : requestAnimationFrame(look); look()"
        assert self.ask(f"new Promise((done) => {{ {look} }})")

    def resize(self, width, height, mobile=False):
        """Resize the window and wait until the page has been redrawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.wait_until(f"document.documentElement.clientWidth === {width}")
        self.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def prefer(self, scheme):
        """Emulate the reader's preference for a light or dark colour scheme."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def point_at(self, selector, across=0.5, down=0.5):
        """Move the mouse to a position in an element."""
        box = self.ask(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({block: 'center'}); const box = element.getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height] })()"
        )
        place = {"x": box[0] + across * box[2], "y": box[1] + down * box[3]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
        return place

    def click(self, selector, modifiers=0, count=1):
        """Click on an element with the mouse; modifiers: 1 is Alt, 8 is Shift."""
        place = self.point_at(selector)
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.call(
                    "Input.dispatchMouseEvent",
                    type=kind,
                    button="left",
                    clickCount=number,
                    modifiers=modifiers,
                    **place,
                )

    def drag(self, selector, start, end):
        """Drag the mouse across an element, from one part of its width to another."""
        place = self.point_at(selector, across=start)
        width = self.ask(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().width")
        there = place | {"x": place["x"] + (end - start) * width}
        self.call("Input.dispatchMouseEvent", type="mousePressed", button="left", clickCount=1, **place)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1, **there)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", button="left", clickCount=1, **there)

    def press(self, key):
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def choose(self, selector, value):
        """Select an option of a select element."""
        self.ask(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}); box.value = {json.dumps(value)};"
            " box.dispatchEvent(new Event('change', {bubbles: true})) })()"
        )

    def enter(self, selector, value):
        """Set the value of an input element."""
        self.ask(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}); box.value = {json.dumps(value)};"
            " box.dispatchEvent(new Event('input', {bubbles: true})) })()"
        )

    def screenshot(self, path, whole=True):
        """Return a screenshot of the page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self):
        """Return the errors and warnings that the page logged."""
        errors = [event["params"] for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        logged = [event["params"]["entry"] for event in self.events if event["method"] == "Log.entryAdded"]
        printed = [event["params"] for event in self.events if event["method"] == "Runtime.consoleAPICalled"]
        return errors + logged + printed

    def requests(self):
        """Return the URLs that the page requested."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def close(self):
        """End the browser and all its child processes."""
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _until(self, wanted):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            message = self._receive(deadline)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer from the browser within {DEADLINE_SECONDS:.0f} s"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


def _pipe_pair():
    """Return a pipe whose file descriptors are not 3 or 4, which the browser uses."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved


def _spawn(folder, commands, answers):
    arguments = [
        PROGRAM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        "--remote-debugging-pipe",
    ]
    actions = [
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, commands, 3),
        (os.POSIX_SPAWN_DUP2, answers, 4),
    ]
    return os.posix_spawn(PROGRAM, arguments, os.environ, file_actions=actions, setpgroup=0)
