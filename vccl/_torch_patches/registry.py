"""One patch of torch: what it replaces, what it expects to find there, and how it is applied."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from vccl import _C, _torch_version
from vccl._torch_patches import imports
from vccl._torch_patches.signatures import owner_of, parameters_of, value_of

_Function = TypeVar("_Function", bound=Callable[..., Any])

# What its owner held under an attribute's name before any patch replaced it, such as a staticmethod object.
originals: dict[str, Any] = {}


def original(attribute: str) -> Any:
    """Returns the value that torch or Python gave an attribute, whatever patches have replaced it with.

    Raises:
        ImportError, AttributeError: there is no such attribute.
    """
    if attribute not in originals:
        return value_of(attribute)
    owner, _ = owner_of(attribute)
    return originals[attribute].__get__(None, owner) if isinstance(owner, type) else originals[attribute]


@dataclass(frozen=True)
class Replacement:
    """One function that stands in for a function of torch or Python."""

    attribute: str
    parameters: str  # those of the original, as parameters_of() writes them
    function: Callable[..., Any]
    aliases: tuple[str, ...]
    as_method: bool

    def install(self) -> None:
        """Puts the function in the place of the original, and of its aliases."""
        owner, name = owner_of(self.attribute)
        replaced = getattr(owner, name)
        held = inspect.getattr_static(owner, name)
        originals.setdefault(self.attribute, held)

        # Several patches may replace one attribute. Each calls what it has found there.
        @functools.wraps(replaced)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.function(replaced, *args, **kwargs)

        is_static = isinstance(held, staticmethod) and not self.as_method
        setattr(owner, name, staticmethod(call) if is_static else call)
        for alias in self.aliases:
            setattr(*owner_of(alias), call)


EVERY_TORCH = f">={_torch_version.SUPPORTED[0]}"


class Patch:
    """A change to torch that vccl needs and for which torch offers no interface.

    Each module of this package that holds a patch has one instance, named ``PATCH``.
    """

    def __init__(
        self,
        module: str,
        *,
        without: str,
        until: str,
        upstream: Sequence[str] = (),
        versions: str = EVERY_TORCH,
        needed: Callable[[], bool] = lambda: True,
        after_import_of: str = "",
    ) -> None:
        """Describes a patch.

        Args:
            module: ``__name__`` of the module that holds the patch. Its last part names the patch.
            without: what goes wrong without the patch, as the rest of a sentence that begins "without it".
            until: what has to happen before the patch can go, as the rest of a sentence that begins "until".
            upstream: issues and pull requests about the hole, such as ``"pytorch/pytorch#189193"``.
            versions: the versions of torch that have the hole, such as ``"<2.15"``. The patch changes nothing
                in others.
            needed: tells whether this process needs the patch.
            after_import_of: a module whose import the patch waits for.
        """
        self.name = module.rpartition(".")[2]
        self.without = without
        self.until = until
        self.upstream = tuple(upstream)
        self.versions = versions
        self.needed = needed
        self.after_import_of = after_import_of
        self.replacements: list[Replacement] = []
        self.expected: dict[str, str] = {}  # parameters of everything that the patch relies on, by attribute
        self.is_applied = False
        self.additions: dict[str, Any] = {}  # what the patch adds to types that are written in C
        self._actions: list[Callable[[], None]] = []

    @property
    def is_for_this_torch(self) -> bool:
        """Whether the installed torch has the hole that the patch closes."""
        return _torch_version.is_one_of(self.versions)

    def replaces(
        self,
        attribute: str,
        parameters: str | Mapping[str, str],
        *,
        aliases: Sequence[str] = (),
        as_method: bool = False,
        versions: str | None = None,
    ) -> Callable[[_Function], _Function]:
        """Returns a decorator for the function that is to stand in for `attribute`.

        The function gets the original as its first argument, followed by the arguments of the call.

        Args:
            attribute: the module and the name in it, as in ``"torch.distributed:ProcessGroup.rank"``.
            parameters: those of the original, as ``parameters_of()`` writes them. Where they differ, they are
                given for each range of versions of torch: ``{"<2.14": "(self)", ">=2.14": "(self, name)"}``.
            aliases: other attributes that hold the same function, and are replaced too.
            as_method: makes a static method one that gets its instance, after the original.
            versions: the versions of torch in which the function is replaced, if they are not all of the
                patch's.
        """

        def decorate(function: _Function) -> _Function:
            if versions is None or _torch_version.is_one_of(versions):
                self.relies_on(attribute, parameters)
                self.replacements.append(
                    Replacement(attribute, self.expected[attribute], function, tuple(aliases), as_method)
                )
            return function

        return decorate

    def relies_on(self, attribute: str, parameters: str | Mapping[str, str]) -> None:
        """Notes the parameters of a function that the patch calls or wraps, and does not replace.

        Args:
            attribute: the module and the name in it.
            parameters: as replaces() takes them.
        """
        if not isinstance(parameters, str):
            of_versions = [
                text for versions, text in parameters.items() if _torch_version.is_one_of(versions)
            ]
            # A patch that is not for this torch need not know what is there.
            parameters = of_versions[0] if of_versions else ""
        self.expected[attribute] = parameters

    def adds(self, attribute: str, value: Any) -> None:
        """Notes an attribute that torch's type, which is written in C, does not have yet."""
        self.additions[attribute] = value

    def action(self, function: _Function) -> _Function:
        """Decorates a function without arguments, which is called when the replacements are in place."""
        self._actions.append(function)
        return function

    def apply(self) -> None:
        """Replaces the attributes, unless one of them is not what the patch was written for.

        Does nothing in a torch that has no such hole. A patch that does not fit is left out as a whole, with
        a RuntimeWarning: torch then behaves as without vccl, and no call fails because of a function that it
        does not expect.
        """
        if not self.is_for_this_torch or not self.needed():
            return
        if self.after_import_of:
            imports.after(self.after_import_of, self._apply_now)
        else:
            self._apply_now()

    def _apply_now(self) -> None:
        problems = list(self._problems())
        if problems:
            warnings.warn(self._warning(problems), RuntimeWarning, stacklevel=2)
            return
        for replacement in self.replacements:
            replacement.install()
        for attribute, value in self.additions.items():
            _C._add_to_type(*owner_of(attribute), value)
        for action in self._actions:
            action()
        self.is_applied = True

    def _problems(self) -> Iterator[str]:
        """Yields a sentence about every attribute that is not as the patch expects it."""
        for attribute, expected in self.expected.items():
            readable = attribute.replace(":", ".")
            try:
                found = parameters_of(value_of(attribute))
            except (AttributeError, ImportError):
                yield f"{readable} does not exist"
            except (TypeError, ValueError) as error:
                yield f"{readable} has unknown parameters ({error})"
            else:
                if found != expected:
                    yield f"{readable} has the parameters {found} instead of {expected}"
        for attribute, value in self.additions.items():
            if inspect.getattr_static(*owner_of(attribute), value) is not value:
                yield f"{attribute.replace(':', '.')} exists already"
        for replacement in self.replacements:
            for alias in replacement.aliases:
                try:
                    is_same = value_of(alias) is value_of(replacement.attribute)
                except (AttributeError, ImportError):
                    is_same = False
                if not is_same:
                    yield f"{alias.replace(':', '.')} is not {replacement.attribute.replace(':', '.')}"

    def _warning(self, problems: Sequence[str]) -> str:
        return (
            f"vccl leaves out its patch {self.name!r}, which does not fit torch {torch.__version__}: "
            f"{'; '.join(problems)}. Without the patch {self.without}. "
            f"Install torch {_torch_version.TESTED}, with which vccl is tested, or a version of vccl that "
            "supports this torch."
        )
