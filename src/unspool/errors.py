"""What can go wrong, said for people: what was given, what is allowed, what to do."""


class UnspoolError(Exception):
    """Base of every error that unspool raises on purpose."""


class ModelFileError(UnspoolError):
    """A model file is damaged, truncated, hostile or of a kind that is not supported."""


class ModelNotFoundError(UnspoolError):
    """No model is known, or can be fetched, by the given name."""


class ParameterError(UnspoolError, ValueError):
    """A parameter is unknown, of the wrong type, out of range or cannot be honoured."""


class ContextLengthError(UnspoolError, ValueError):
    """A request needs more tokens than the model's context or the cache can hold."""


class SettingsWarning(UserWarning):
    """Settings that work against each other, or are likely not meant."""


class RowError(UnspoolError):
    """A row of logits has no law to draw from: it holds NaN or +infinity, or rules left nothing of it.

    Ends the one request whose row it was.
    """


class SearchError(UnspoolError):
    """A search ended without what it looks for."""


class BackendError(UnspoolError):
    """The backend cannot be built or cannot compute a step."""


def shown(value: object) -> str:
    """A value as an error shows it: short, and whatever its ``repr`` does."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits for Python to write, or a caller's own class
        return f"{type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."
