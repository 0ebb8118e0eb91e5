"""Every error that a user can cause. A message names the thing, what was expected, what came, and the way out.

HeadlensError
├── UnsupportedModel     the model cannot be loaded, or its attention cannot be watched
├── CaptureError         capture was used in a way that would give wrong numbers
├── SelfCheckFailed      what was captured is not what the model computed
├── InvalidAttention     sizes, masks or weights that no attention layer can have
├── CorpusError          a corpus that cannot be read, or holds nothing
├── MissingAnnotation    an analyzer needs an annotation that the corpus does not carry
├── PlanError            a plan of heads that the model cannot follow
├── HealingError         a healing that cannot be done, or that came to nothing
└── OutputError          a result cannot be written or read
"""


class HeadlensError(Exception):
    """Base of every error that headlens raises on purpose."""


class UnsupportedModel(HeadlensError):
    """The model cannot be loaded, or its attention cannot be watched."""


class CaptureError(HeadlensError):
    """Capture was used in a way that would give wrong numbers."""


class SelfCheckFailed(HeadlensError):
    """What was captured is not what the model computed."""


class InvalidAttention(HeadlensError):
    """Sizes, masks or weights that no attention layer can have."""


class CorpusError(HeadlensError):
    """A corpus that cannot be read, or that holds nothing."""


class MissingAnnotation(HeadlensError):
    """An analyzer needs an annotation that the corpus does not carry."""


class PlanError(HeadlensError):
    """A plan of heads that the model cannot follow, or a ranking that makes none."""


class HealingError(HeadlensError):
    """A healing that cannot be done as it was asked for, or that came to nothing."""


class OutputError(HeadlensError):
    """A result cannot be written, or a saved one cannot be read."""


def in_words(reason: Exception) -> str:
    """What is wrong with a file, in brackets; nothing where only Python's own words for it are known."""
    if isinstance(reason, HeadlensError):
        return f" ({str(reason).rstrip('.')})"
    return f" ({reason.args[0]} is missing)" if isinstance(reason, KeyError) else ""
