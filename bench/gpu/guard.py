"""guard.py COMMAND...: runs a command and sees to it that nothing of it is left behind.

Its standard input is a pipe that the runner holds open. When the pipe closes, because the runner wants the command to
end or because the runner itself was killed, the command is asked to end (SIGTERM) and after 5 seconds killed, with all
its descendants: orphans become children of this process (PR_SET_CHILD_SUBREAPER), so that none escapes by a session of
its own. Exits as the command did, 128 + the signal where a signal ended it, 127 where it could not be started.
"""
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
SECONDS_TO_END = 5


def descendants(process):
    found = []
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            with open(f"/proc/{process}/task/{task}/children") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def kill_descendants():
    """Until none is left: a child may start another between the look and the signal."""
    for _ in range(100):
        left = descendants(os.getpid())
        if not left:
            return
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break
        time.sleep(0.02)


def main():
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # the pipe alone says when to end
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def as_usual():
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)

    try:
        child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=as_usual, start_new_session=True)
    except OSError as error:
        print(f"could not start {sys.argv[1]}: {error.strerror}", file=sys.stderr)
        return 127
    child_descriptor = os.pidfd_open(child.pid)
    ready, _, _ = select.select([0, child_descriptor], [], [])
    if child_descriptor not in ready:
        try:
            os.killpg(child.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        select.select([child_descriptor], [], [], SECONDS_TO_END)
    if child.poll() is None:
        child.kill()
    code = child.wait()
    kill_descendants()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
