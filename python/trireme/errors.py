"""What goes wrong by the caller's request. Failures of another rank are torch.distributed's DistBackendError."""


class ConfigError(ValueError):
    """A wrong request, or one that Trireme refuses; the message says what was got, expected, and what to do."""
