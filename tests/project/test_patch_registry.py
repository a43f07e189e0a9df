"""The registry of the patches of torch: what it checks, and that docs and tests cover every patch."""

import importlib
import inspect
import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

from vccl import _C, _threads, _torch_patches, _torch_version
from vccl._torch_patches import imports, registry
from vccl._torch_patches.registry import Patch
from vccl._torch_patches.signatures import parameters_of, value_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(_torch_patches.__file__).parent
FOLDERS = {"device": _torch_patches.DEVICE_PATCHES, "distributed": _torch_patches.DISTRIBUTED_PATCHES}
NAMES = (*_torch_patches.DEVICE_PATCHES, *_torch_patches.DISTRIBUTED_PATCHES)
PATCHES = [_torch_patches.patch(name) for name in NAMES]
every_patch = pytest.mark.parametrize(
    "patch",
    [
        pytest.param(patch, marks=pytest.mark.torch(patch.versions, "other versions have no such hole"))
        for patch in PATCHES
    ],
    ids=NAMES,
)


@pytest.fixture
def module(monkeypatch):
    """A module that stands in for torch."""
    module = types.ModuleType("fake_torch")

    def greet(name, greeting="Hello"):
        return f"{greeting} {name}"

    class Group:
        def size(self):
            return 2

        @staticmethod
        def kind(name):
            return name

    module.greet = module.also_greet = greet
    module.Group = Group
    monkeypatch.setitem(sys.modules, "fake_torch", module)
    monkeypatch.setattr(registry, "originals", {})
    return module


def make_patch() -> Patch:
    return Patch("vccl._torch_patches.courtesy", without="nobody is greeted", until="torch greets")


def test_a_patch_replaces_every_name_of_a_function(module):
    greet = module.greet
    patch = make_patch()

    @patch.replaces("fake_torch:greet", "(name, greeting=...)", aliases=["fake_torch:also_greet"])
    def politely(original, name, greeting="Hello"):
        return original(name, greeting) + ", please"

    patch.apply()
    assert patch.is_applied
    assert module.greet("you") == module.also_greet(name="you") == "Hello you, please"
    assert registry.original("fake_torch:greet") is greet
    assert parameters_of(module.greet) == "(name, greeting=...)"


def test_patches_of_one_attribute_wrap_each_other(module):
    greet = module.greet
    for mark in "?!":
        patch = make_patch()

        @patch.replaces("fake_torch:greet", "(name, greeting=...)")
        def add_mark(original, *args, mark=mark):
            return original(*args) + mark

        patch.apply()
    assert module.greet("you") == "Hello you?!"
    assert registry.original("fake_torch:greet") is greet


def test_methods_and_static_methods_stay_what_they_are(module):
    patch = make_patch()

    @patch.replaces("fake_torch:Group.size", "(self)")
    def size(original, self):
        return original(self) + 1

    @patch.replaces("fake_torch:Group.kind", "(name)")
    def kind(original, name):
        return original(name).upper()

    patch.apply()
    group = module.Group()
    assert group.size() == 3
    assert group.kind("a") == module.Group.kind("a") == "A"


def test_a_static_method_can_become_a_method(module):
    patch = make_patch()

    @patch.replaces("fake_torch:Group.kind", "(name)", as_method=True)
    def kind(original, self, name):
        return original(name), self.size()

    patch.apply()
    assert module.Group().kind("a") == ("a", 2)


@pytest.mark.parametrize(
    ("attribute", "parameters", "aliases", "text"),
    [
        ("fake_torch:greet", "(name)", [], r"fake_torch\.greet has the parameters \(name, greeting=\.\.\.\)"),
        ("fake_torch:greet", "(name, greeting)", [], r"instead of \(name, greeting\)"),
        ("fake_torch:Group.rank", "(self)", [], r"fake_torch\.Group\.rank does not exist"),
        ("fake_torch:Team.size", "(self)", [], r"fake_torch\.Team\.size does not exist"),
        ("fake_flames:greet", "(name)", [], r"fake_flames\.greet does not exist"),
        ("fake_torch:greet", "(name, greeting=...)", ["fake_torch:Group"], r"Group is not fake_torch\.greet"),
        ("fake_torch:greet", "(name, greeting=...)", ["fake_torch:hail"], r"hail is not fake_torch\.greet"),
    ],
)
def test_a_patch_that_does_not_fit_is_left_out_as_a_whole(module, attribute, parameters, aliases, text):
    before = {**vars(module)}, {**vars(module.Group)}
    patch = make_patch()
    done = []
    patch.replaces("fake_torch:Group.size", "(self)")(lambda original, self: 0)
    patch.replaces(attribute, parameters, aliases=aliases)(lambda original, *args: None)
    patch.action(lambda: done.append(1))
    with pytest.warns(RuntimeWarning, match=text) as caught:
        patch.apply()
    (warning,) = caught
    for part in ("'courtesy'", torch.__version__, _torch_version.TESTED, "nobody is greeted"):
        assert part in str(warning.message)
    assert not patch.is_applied and not done
    assert ({**vars(module)}, {**vars(module.Group)}) == before


def test_what_a_patch_adds_is_not_there_yet():
    patch = make_patch()
    patch.adds("torch:Stream.stream_id", property(lambda stream: 0))
    with pytest.warns(RuntimeWarning, match=r"torch\.Stream\.stream_id exists already"):
        patch.apply()
    assert not patch.is_applied and torch.vdev.default_stream(1).device.index == 1


def test_functions_that_a_patch_only_calls_are_checked_too(module):
    patch = make_patch()
    patch.relies_on("fake_torch:greet", "()")
    patch.replaces("fake_torch:Group.size", "(self)")(lambda original, self: 0)
    with pytest.warns(RuntimeWarning, match=r"fake_torch\.greet"):
        patch.apply()
    assert module.Group().size() == 2


def test_a_patch_that_the_process_does_not_need_is_not_checked(module):
    patch = Patch("x.y", without="", until="", needed=lambda: False)
    patch.relies_on("fake_torch:gone", "()")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.apply()
    assert not patch.is_applied


OLDER, NEWER = "<2.0", ">=2.0"  # of which the first is never installed


def test_a_patch_for_other_versions_changes_nothing(module):
    greet = module.greet
    patch = Patch("x.y", without="", until="", versions=OLDER)
    patch.relies_on("fake_torch:gone", "()")
    patch.replaces("fake_torch:greet", "(name, greeting=...)")(lambda original, *args: "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.apply()
    assert not patch.is_applied and not patch.is_for_this_torch
    assert module.greet is greet


def test_parameters_may_differ_between_versions(module):
    patch = make_patch()
    parameters = {OLDER: "(name)", NEWER: "(name, greeting=...)"}
    patch.replaces("fake_torch:greet", parameters)(lambda original, *args: original(*args) + "!")
    patch.relies_on("fake_torch:Group.size", {OLDER: "()", NEWER: "(self)"})
    patch.apply()
    assert patch.is_applied and module.greet("you") == "Hello you!"


def test_one_replacement_may_be_for_other_versions(module):
    greet = module.greet
    patch = make_patch()
    patch.replaces("fake_torch:greet", "()", versions=OLDER)(lambda original: "")
    patch.replaces("fake_torch:Group.size", "(self)", versions=NEWER)(lambda original, self: 7)
    patch.apply()
    assert patch.is_applied and module.greet is greet and module.Group().size() == 7


def test_a_patch_can_wait_for_an_import(monkeypatch, tmp_path):
    (tmp_path / "comes_later.py").write_text("def late(): return 'late'\n")
    monkeypatch.syspath_prepend(tmp_path)
    patch = Patch("x.y", without="", until="", after_import_of="comes_later")
    patch.replaces("comes_later:late", "()")(lambda original: original() + "r")
    patch.apply()
    assert not patch.is_applied and "comes_later" not in sys.modules
    import comes_later

    assert patch.is_applied and comes_later.late() == "later"
    monkeypatch.delitem(sys.modules, "comes_later")


def test_parameters_of_bound_functions_come_from_their_docstring():
    assert parameters_of(_C.ProcessGroupVccl.Options.__deepcopy__) == "(self, memo)"
    assert parameters_of(_C._HostBarrier.wait) == "(self, look, timeout)"
    assert parameters_of(registry.original("torch.distributed.distributed_c10d:_register_process_group")) == (
        "(group_name, group)"
    )
    with pytest.raises(ValueError, match="does not tell its parameters"):
        parameters_of(dict.update)


# ---- the patches of vccl


def test_every_module_with_a_patch_is_on_the_list():
    with_patch = {path.stem for path in FOLDER.rglob("*.py") if "\nPATCH = Patch(" in path.read_text()}
    assert with_patch == set(NAMES)
    assert len(NAMES) == len(set(NAMES))


def test_several_actions_wait_for_one_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    seen = []
    for mark in "ab":
        imports.after(
            "imported_late", lambda mark=mark: seen.append((mark, sys.modules["imported_late"].value))
        )
    assert seen == []
    importlib.import_module("imported_late")
    assert seen == [("a", 1), ("b", 1)]
    imports.after("imported_late", lambda: seen.append("c"))
    assert seen[2:] == ["c"]


@every_patch
def test_every_patch_fits_the_installed_torch(patch):
    if patch.after_import_of:
        pytest.importorskip(patch.after_import_of)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(patch._problems()) == []
    assert patch.is_applied or not patch.needed() or patch.after_import_of


@every_patch
def test_every_replacement_takes_what_its_original_takes(patch):
    """Callers may give any parameter by name. Those that a replacement only passes on, it need not name."""
    assert patch.replacements or patch.additions or patch.after_import_of
    for replacement in patch.replacements:
        original = inspect.Signature.from_callable(eval(f"lambda {replacement.parameters[1:-1]}: 0"))
        names = list(original.parameters)
        _, *own = inspect.signature(replacement.function).parameters.values()
        if replacement.as_method:
            _, *own = own
        named = [p.name for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        assert named == names[: len(named)], replacement.attribute
        assert len(named) == len(names) or len(named) < len(own), replacement.attribute


def link(reference: str) -> str:
    """Returns Markdown for a reference such as "pytorch/pytorch#1"."""
    project, number = reference.split("#")
    name = "" if project == "pytorch/pytorch" else project.split("/")[1]
    return f"[{name}#{number}](https://github.com/{project}/issues/{number})"


def test_the_page_lists_every_patch():
    """Compares the table of docs/inside/torch.md with the registry, and shows the right rows otherwise."""
    page = (ROOT / "docs" / "inside" / "torch.md").read_text()
    rows = [
        f"| [`{patch.name}`](../../vccl/_torch_patches/{folder}/{patch.name}.py) | {patch.without} "
        f"| {patch.until} | {'all' if patch.versions == registry.EVERY_TORCH else patch.versions} "
        f"| {', '.join(map(link, patch.upstream)) or 'none found'} |"
        for folder, names in FOLDERS.items()
        for patch in map(_torch_patches.patch, names)
    ]
    assert re.findall(r"^\| \[`.*$", page, re.MULTILINE) == rows, "\n".join(rows)


def test_every_patch_has_a_probe_of_its_hole():
    files = [
        ROOT / "tests" / room / "patches" / f"test_torch_holes_of_{room}.py"
        for room in ("device", "distributed")
    ]
    probes = [
        name
        for path in files
        for name in re.findall(r"^def test_hole_of_(\w+)", path.read_text(), re.MULTILINE)
    ]
    assert sorted(probes) == sorted(NAMES)


@pytest.mark.parametrize(("file", "function"), _threads._HARMLESS)
def test_threads_that_the_search_for_deadlocks_knows_exist(file, function):
    """vccl/_threads.py recognizes the threads of other packages by the function that they run."""
    module = pytest.importorskip(file.removesuffix(".py").replace("/", "."))
    assert re.search(rf"\bdef {function}\(", Path(module.__file__).read_text())


def test_the_search_for_deadlocks_can_ask_torch_for_an_rpc_agent():
    assert callable(value_of("torch.distributed.rpc.api:_is_current_rpc_agent_set"))
