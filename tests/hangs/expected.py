"""What has to be said of a job that hangs or breaks. Each script in jobs/ has one of these as EXPECT."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A diagnosis from outside, while the job stands.

    ``culprits`` are ranks in the job, and ``text`` has parts of the diagnosis's text, such as the innermost
    own function of the culprit.
    """

    kind: str
    culprits: tuple[int, ...]
    text: tuple[str, ...] = ()


@dataclass(frozen=True)
class Errors:
    """An exception on each of ``ranks``, whose text has all parts of ``text``.

    Other ranks may end as they like.
    """

    ranks: tuple[int, ...]
    text: tuple[str, ...] = ()
