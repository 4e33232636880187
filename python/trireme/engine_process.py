"""A program beside this process: its lines are read as they come, and it ends with this process, however that ends."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import traceback
from typing import Callable, Optional

KEPT_LINES = 40
# Becomes the program, which Linux then asks to stop when the thread that started it ends. A fork of this process, which
# has threads, could not call Python for that.
_FOLLOW = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(75); os.execv(sys.argv[2], sys.argv[2:])"
)


class EngineProcess:
    """Runs `words` in a session of its own, so that a Control-C reaches this process alone, which then decides."""

    def __init__(self, words: list[str], log: Optional[Callable[[str], object]]):
        self.asked_to_stop = False
        self._log = log
        self._lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._untold: collections.deque[str] = collections.deque()
        self._owner = os.getpid()
        started: concurrent.futures.Future[subprocess.Popen] = concurrent.futures.Future()
        # The thread that starts the program lives until it ends (see _FOLLOW).
        self._reader = threading.Thread(target=self._read, args=(words, started), daemon=True, name="trireme")
        self._reader.start()
        self._program = started.result()

    @property
    def exit_code(self) -> Optional[int]:
        return self._program.poll()

    def wait(self, seconds: float) -> bool:
        """Whether the program ended within `seconds`."""
        try:
            self._program.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ask_to_stop(self) -> None:
        """Once: a second request would end the run at once."""
        if not self.asked_to_stop and self._program.poll() is None:
            self.asked_to_stop = True
            self._program.send_signal(signal.SIGTERM)

    def end(self, seconds: float) -> bool:
        """Asks the program to stop, waits so long for it to save, then kills it, as a Control-C meanwhile does. False in
        a fork of this process, whose parent has the program."""
        if os.getpid() != self._owner:
            return False
        self.ask_to_stop()
        try:
            self._program.wait(seconds)
        except subprocess.TimeoutExpired:
            self._program.kill()
        except BaseException:
            self._program.kill()
            raise
        self._program.wait()
        return True

    def end_of_run(self) -> tuple[int, list[str]]:
        """The exit code, a signal as -N, and the last lines."""
        code = self._program.wait()
        if threading.current_thread() is not self._reader:  # which may collect a run's garbage
            self._reader.join(5)  # someone else may hold the pipe
        return code, list(self._lines)

    def take_lines_of(self, words: str) -> list[str]:
        """Lines since the last call that have `words` in them."""
        untold = [self._untold.popleft() for _ in range(len(self._untold))]  # the reader may add to it meanwhile
        return [line for line in untold if words in line]

    def _read(self, words: list[str], started: concurrent.futures.Future) -> None:
        try:
            program = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _FOLLOW, str(self._owner), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(program)
        for line in program.stdout or ():
            self._lines.append(line.rstrip("\n"))
            self._untold.append(line.rstrip("\n"))
            if self._log:
                try:
                    self._log(line.rstrip("\n"))
                except Exception:  # told as one of a thread; the program must not wait for a reader
                    self._log = None
                    traceback.print_exc()
        program.communicate()  # closes the pipe and waits
