"""The results folder of a run, from which a later call goes on:

    state.json      every command's state, times and figures; written beside and renamed after each change
    results.jsonl   a line when a command begins and when it ends, and a line for each of its measurements
    summary.md      the page for people (summary.py)
    logs/           stdout and stderr of each command, one pair an attempt

One runner at a time: the folder is locked.
"""
import datetime
import fcntl
import json
import os
import sys
import tarfile


def now():
    return datetime.datetime.now().isoformat(timespec="seconds")


def write_whole(path, text):
    """A reader finds the old file or the new one, never half."""
    with open(path + ".part", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".part", path)


class Results:
    def __init__(self, folder, header, pack="", root=""):
        """Goes on with what lies in the folder. `header` describes this call; `pack` is an archive to keep beside; the page
        names files below `root` without it: it speaks of no one's folders."""
        self.folder, self.pack, self._root = os.path.abspath(folder), pack, root
        os.makedirs(os.path.join(self.folder, "logs"), exist_ok=True)
        self._lock = open(os.path.join(self.folder, ".lock"), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"gpu: another runner is at work in {self.folder}; wait for it, or give another --out")
        self._path = os.path.join(self.folder, "state.json")
        self.calls, self.commands = [], {}
        if os.path.exists(self._path):
            with open(self._path) as file:
                old = json.load(file)
            self.calls, self.commands = old["calls"], old["commands"]
        if self.calls and self.calls[-1]["device"] != header["device"]:
            sys.exit(f"gpu: {self.folder} holds results of --device {self.calls[-1]['device']}; give another --out for {header['device']}")
        self.calls.append(header)
        for record in self.commands.values():
            if record["state"] == "running":  # its runner was killed
                record.update(state="cut off", reason="the runner was killed while it ran")
        self._save()

    def state(self, key):
        return self.commands.get(key, {}).get("state", "not reached")

    def figures(self):
        return {key: record.get("figures", {}) for key, record in self.commands.items()}

    def forget(self, stage):
        for key in [key for key in self.commands if key.startswith(stage + "/")]:
            self.commands[key] = {"state": "not reached", "attempts": self.commands[key].get("attempts", 0)}
        self._save()

    def log_paths(self, key):
        attempt = self.commands.get(key, {}).get("attempts", 0) + 1
        stem = os.path.join("logs", key.replace("/", "-") + (f"-{attempt}" if attempt > 1 else ""))
        return stem + ".out", stem + ".err"

    def begin(self, key, command_line, stdout, stderr):
        attempts = self.commands.get(key, {}).get("attempts", 0) + 1
        self.commands[key] = {"state": "running", "call": len(self.calls), "began": now(), "attempts": attempts,
                              "command": command_line, "stdout": stdout, "stderr": stderr}
        self._append({"began": key, "time": now(), "command": command_line})
        self._save()

    def end(self, key, rows=None, **record):
        """`record` has state and reason; of a command that ran also exit_code, seconds and figures, and `rows`. What an earlier
        attempt measured stays where this call did not begin the command."""
        self.commands.setdefault(key, {"call": len(self.calls)}).update(record)
        if rows is not None:
            self.commands[key]["rows"] = list(rows)
        for row in rows or ():
            self._append({"measured": key, **row})
        self._append({"ended": key, "time": now(), **record})
        self._save()

    def _append(self, line):
        with open(os.path.join(self.folder, "results.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\n")

    def _save(self):
        write_whole(self._path, json.dumps({"calls": self.calls, "commands": self.commands}, indent=1))

    def write_summary(self, text):
        """Returns the page as written."""
        text = text.replace(self._root + os.sep, "") if self._root else text
        write_whole(os.path.join(self.folder, "summary.md"), text)
        if self.pack:
            with tarfile.open(self.pack + ".part", "w:gz") as archive:
                archive.add(self.folder, os.path.basename(self.folder), filter=lambda entry: None if entry.name.endswith(".lock") else entry)
            os.replace(self.pack + ".part", self.pack)
        return text
