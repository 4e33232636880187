"""What goes wrong by the caller's request. Failures of another rank are torch.distributed's DistBackendError."""

# Exit codes of `trireme` and of python -m trireme.chats (docs/launching.md).
DATA_AT_FAULT, STOPPED, REQUEST_AT_FAULT = 65, 75, 78  # a lost rank ends with 75 as well


class ConfigError(ValueError):
    """A wrong request, or one that Trireme refuses; the message says what was got, expected, and what to do."""


class DataError(ValueError):
    """Data with wrong content, or a file that cannot be written; the message names the file, row or document."""


class RunFailed(RuntimeError):
    """A run of the engine (trireme.train) that ended by itself, not done; ConfigError where the request is at fault.

    exit_code: as docs/launching.md lists them (65 a file, 70 a bug, 75 another rank or a request to stop); -N: killed by
        signal N. lines: the last that the program printed.
    """

    def __init__(self, message: str, exit_code: int, lines: list[str]):
        super().__init__(message)
        self.exit_code = exit_code
        self.lines = lines
