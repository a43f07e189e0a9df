"""PyTorch's suite as it reads for a backend and a device that it does not know: changes to its syntax tree.

The suite chooses its tests by the backend's name ("nccl only", "gloo only"), and reaches the accelerator as
CUDA. What a test does and expects is left as it is, but for the size of one model (_SIZES) and for texts that
are another backend's own (_TEXTS): changed is who the tests are for, and what the accelerator is called. What
upstream has switched off for its own machines runs too. Line numbers stay, so that tracebacks point into the
installed file.
"""

import ast
from collections.abc import Callable, Iterable

# A test that upstream runs with one of these, on such a device, is for a complete backend too.
# With cards that pose as CUDA, the suite meets "nccl" and chooses by itself.
STAND_INS = {"cpu": ("gloo", "mpi"), "vdev": ("gloo", "mpi", "nccl"), "cuda": ()}
# Called in place of the condition of a skip, and of the backends that a test requires.
SKIPPED_FOR_ALL = "_conformance_skipped_for_all"
WIDENED = "_conformance_widened"
# In place of ProcessGroupNCCL.
PROCESS_GROUP = "_conformance_process_group"

_SKIPS = ("skip_but_pass_in_sandcastle_if", "skipIf")
# Upstream switches off some tests for its own machines: on Linux, or altogether. Here they run.
_DISABLED = ("skip", "skip_but_pass_in_sandcastle")
_ACTIVITIES = ("ProfilerActivity", "DeviceType")

# Variables of single tests: a convolution over images of 1000 x 1000 takes a GPU, or an hour.
_SIZES = {"test_ddp_uneven_inputs": {"dim": 40}}
# Sentences of NCCL's watchdog and gloo: vccl's instead.
_TEXTS = {
    "caught collective operation timeout": "did not end within the 100 ms",
    " (Timed out|closed|timeout) ": r"to begin barrier|within the timeout of",
    # The others leave the group meanwhile: which of the two comes first is open.
    "Timed out waiting 1ms": r"waited 1 ms for|within the timeout of 1 ms|left group .* while rank 0 waited",
}
# Their names for operations in the profiler: vccl's, which in pose are NCCL's.
_EVENTS = {":recvAnySource": ":recv", "_all_gather_base": "all_gather_into_tensor", "allreduce": "all_reduce"}
# Of a text that is put together, by a part of it: the whole.
_FORMATTED_TEXTS = {
    # gloo says on each rank what that rank saw; vccl raises on every rank the error that names the missing.
    "successfully reached monitoredBarrier": "failed to pass monitoredBarrier in",
    "timed out in monitoredBarrier": "failed to pass monitoredBarrier in 0 ms",
}


def selectors(device: str) -> dict[str, Callable]:
    """The functions that the rewritten suite calls, by name."""
    stand_ins = STAND_INS[device]

    def skipped_for_all(condition: Callable[[str], object]) -> bool:
        return all(condition(backend) for backend in stand_ins)

    def widened(backends: Iterable[str]) -> set[str]:
        backends = set(backends)
        return backends | {"vccl"} if backends & set(stand_ins) else backends

    return {SKIPPED_FOR_ALL: skipped_for_all, WIDENED: widened}


def rewrite(source: str, filename: str, device: str) -> ast.Module:
    """The suite's syntax tree for backend vccl and tensors on `device`.

    On cards that pose as CUDA ("cuda") vccl has the name that the suite knows, so little is changed.
    """
    tree = ast.parse(source, filename)
    tree = _Selection(by_stand_ins=device != "cuda").visit(tree)
    if device != "cuda":
        tree = _Branches("nccl" if device == "vdev" else "gloo").visit(tree)
    tree = _Texts(_TEXTS if device == "cuda" else _TEXTS | _EVENTS).visit(tree)
    if device == "vdev":
        tree = _Device().visit(tree)
    return ast.fix_missing_locations(tree)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(name, ast.Load()), args=[argument], keywords=[])


def _is_disabled(decorator: ast.expr) -> bool:
    """Whether it skips a test whatever the backend and the ranks are, on Linux or everywhere."""
    if not isinstance(decorator, ast.Call) or not decorator.args:
        return False
    if _name(decorator.func) in _SKIPS:
        condition = decorator.args[0]
        on_linux = any(_name(part) == "IS_LINUX" for part in ast.walk(condition))
        return on_linux or (isinstance(condition, ast.Constant) and condition.value is True)
    return _name(decorator.func) in _DISABLED


class _Selection(ast.NodeTransformer):
    """Which tests run: those that upstream runs with any of the stand-ins, or as upstream says."""

    def __init__(self, by_stand_ins: bool) -> None:
        self._by_stand_ins = by_stand_ins

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        enabled = (decorator for decorator in node.decorator_list if not _is_disabled(decorator))
        node.decorator_list = [self._decorator(decorator) for decorator in enabled]
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                size = _SIZES.get(node.name, {}).get(statement.targets[0].id)
                if size is not None:
                    statement.value = ast.Constant(size)
        return self.generic_visit(node)

    def _decorator(self, node: ast.expr) -> ast.expr:
        if not self._by_stand_ins or not isinstance(node, ast.Call) or not node.args:
            return node
        condition = node.args[0]
        if _name(node.func) == "require_backend_is_available":
            node.args[0] = _call(WIDENED, condition)
        elif _name(node.func) in _SKIPS and any(_name(part) == "BACKEND" for part in ast.walk(condition)):
            parameters = ast.arguments(
                posonlyargs=[], args=[ast.arg("BACKEND")], kwonlyargs=[], kw_defaults=[], defaults=[]
            )
            node.args[0] = _call(SKIPPED_FOR_ALL, ast.Lambda(args=parameters, body=condition))
        return node


class _Branches(ast.NodeTransformer):
    """Which branch is taken inside a test: that of the backend that upstream uses for such tensors."""

    def __init__(self, stands_in: str) -> None:
        self._stands_in = stands_in

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        # A condition that _Selection has wrapped, and that is about the names themselves.
        is_condition = [argument.arg for argument in node.args.args] == ["BACKEND"]
        return node if is_condition else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        if _name(node.left).lower() == "backend":
            for operand in node.comparators:
                if isinstance(operand, ast.Constant) and operand.value == self._stands_in:
                    operand.value = "vccl"
        return self.generic_visit(node)


class _Texts(ast.NodeTransformer):
    """What an error or the profiler says."""

    def __init__(self, replaced: dict[str, str]) -> None:
        self._replaced = replaced

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            node.value = self._replaced.get(node.value, node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        for part, whole in _FORMATTED_TEXTS.items():
            if part in text:
                return ast.Constant(whole)
        return self.generic_visit(node)


class _Device(ast.NodeTransformer):
    """What the accelerator is called: torch.cuda, Tensor.cuda(), "cuda:0", and the backend "nccl" for it."""

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        is_condition = [argument.arg for argument in node.args.args] == ["BACKEND"]
        return node if is_condition else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        # It asks whether each backend is there, by torch's name for it.
        return node if node.name == "require_backend_is_available" else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        return ast.Pass() if any(alias.name == "torch.cuda" for alias in node.names) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        # torch.amp's own, which are told the device where they are called.
        if node.module == "torch.cuda.amp":
            node.module = "torch.amp"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr == "NCCL" and _name(node.value) == "Backend":
            return ast.Constant("vccl")
        if node.attr == "ProcessGroupNCCL":
            return ast.Name(PROCESS_GROUP, ast.Load())
        if node.attr == "cuda":
            node.attr = "vdev"
        elif node.attr == "CUDA" and _name(node.value) in _ACTIVITIES:
            node.attr = "PrivateUse1"
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        # DistTestCases.backend_feature["cuda"] is the name of a feature.
        return node if _name(node.value) == "backend_feature" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str):
            if node.value == "cuda" or node.value.startswith("cuda:"):
                node.value = "vdev" + node.value.removeprefix("cuda")
            elif node.value == "nccl":
                node.value = "vccl"
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Name) and node.func.id in ("autocast", "GradScaler"):
            node.args.insert(0, ast.Constant("vdev"))
        for keyword in node.keywords:
            if keyword.arg == "use_cuda":  # of the autograd profiler
                keyword.arg = "use_device"
                keyword.value = ast.IfExp(keyword.value, ast.Constant("vdev"), ast.Constant(None))
        return self.generic_visit(node)
