"""Finds the places of a script that hold a device, and changes what names CUDA there."""

from __future__ import annotations

import re

import libcst as cst
from libcst.metadata import Assignment

from vccl.convert.arguments import argument
from vccl.convert.plan import Plan
from vccl.convert.strings import Form, convert_by_shape, convert_value, text_of
from vccl.convert.targets import DEVICE_PARAMETERS, TARGETS, TYPE_PARAMETERS
from vccl.convert.torch_cuda import type_of_accelerator

# Names that hold a device, or several.
_DEVICE_NAME = re.compile(r"(?:.*_)?(?:devices?|device_?types?|map_location|dev)", re.IGNORECASE)
_DEVICE_OPTION = re.compile(r"--?(?:[\w-]+[-_])?device(?:[-_]type)?")
# What argparse, optparse and click make an option of the command line with.
OPTION_FUNCTIONS = ("add_argument", "add_option", "option")
_DEVICE_KEYWORDS = {"device", "map_location"}
_TYPE_KEYWORDS = {"device_type", "pin_memory_device"}
_TENSOR_METHODS = re.compile(r"to|to_empty|new_\w+|cuda")


def convert(plan: Plan, nodes: list[cst.CSTNode]) -> None:
    finder = _Finder(plan)
    for node in nodes:
        if isinstance(node, cst.Call):
            finder.call(node)
    for node in nodes:
        finder.assignment(node)
        finder.comparison(node)
    for node in nodes:
        convert_by_shape(plan, node)


class _Finder:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # What gave its value to a variable that was used as a device.
        self._sources: set[cst.CSTNode] = set()

    # ---- arguments

    def call(self, call: cst.Call) -> None:
        plan = self._plan
        name = plan.names.full_name(call.func) or ""
        if name == "torch.device" and self._torch_device(call):
            return
        if name in TYPE_PARAMETERS:
            self._type_parameter(call, name)
        elif name in DEVICE_PARAMETERS:
            position, keyword = DEVICE_PARAMETERS[name]
            self._device(argument(call, position, keyword), Form.DEVICE)
        elif name.startswith("torch.cuda.") and name.removeprefix("torch.cuda.") in TARGETS:
            self._torch_cuda(call, name.removeprefix("torch.cuda."))
        elif isinstance(call.func, cst.Attribute):
            self._method(call, call.func.attr.value)
        known = name.startswith("torch.") or self._is_tensor_method(call)
        for arg in call.args:
            keyword = arg.keyword.value if arg.keyword is not None else ""
            if keyword in _DEVICE_KEYWORDS:
                self._device(arg, Form.DEVICE if known else Form.TEXT)
            elif keyword in _TYPE_KEYWORDS:
                self._device(arg, Form.TYPE if known else Form.TEXT)
            elif _DEVICE_NAME.fullmatch(keyword):
                convert_value(plan, arg.value, Form.TEXT)

    def _torch_device(self, call: cst.Call) -> bool:
        """Makes `torch.device("cuda")` the accelerator. Returns whether it did."""
        arg = argument(call, 0, "device", "type")
        if arg is None or len(call.args) != 1:
            return False
        if text_of(arg.value) != "cuda":
            self._device(arg, Form.TYPE)
            return True
        if "#" not in self._plan.source.code(call):
            accelerator = self._plan.torch(call, Form.DEVICE.value)
            if accelerator is not None:
                self._plan.replace(call, accelerator)
                self._plan.handle(call.func)
                self._plan.handle(arg.value)
        return True

    def _type_parameter(self, call: cst.Call, name: str) -> None:
        position, keyword = TYPE_PARAMETERS[name]
        arg = argument(call, position, keyword)
        if arg is None:
            return
        enabled = 5 if name.endswith("GradScaler") else 2
        if text_of(arg.value) == "cuda" and name.endswith(("autocast", "GradScaler")):
            spelled = type_of_accelerator(self._plan, call, enabled)
            if spelled is not None:
                self._plan.replace(arg.value, spelled)
            return
        self._device(arg, Form.TYPE)

    def _torch_cuda(self, call: cst.Call, name: str) -> None:
        if name.startswith("amp.") or name in ("Event", "manual_seed", "manual_seed_all", "stream"):
            return
        position = 1 if name in ("set_rng_state", "set_per_process_memory_fraction") else 0
        self._device(argument(call, position, "device"), Form.DEVICE)

    def _method(self, call: cst.Call, method: str) -> None:
        if method in ("to", "cuda"):
            self._device(argument(call, 0, "device"), Form.DEVICE)
        elif method == "startswith" and isinstance(call.func, cst.Attribute):
            arg = argument(call, 0)
            if arg is not None and self._is_device(call.func.value):
                convert_value(self._plan, arg.value, Form.TEXT)
        elif method in OPTION_FUNCTIONS and any(
            _DEVICE_OPTION.fullmatch(text_of(arg.value) or "") for arg in call.args if arg.keyword is None
        ):
            for keyword in ("default", "choices"):
                self._device(argument(call, None, keyword), Form.TEXT)

    def _is_tensor_method(self, call: cst.Call) -> bool:
        func = call.func
        return isinstance(func, cst.Attribute) and _TENSOR_METHODS.fullmatch(func.attr.value) is not None

    def _device(self, arg: cst.Arg | None, form: Form) -> None:
        """Changes an argument that is a device, and notes where a variable got the value from."""
        if arg is None or arg.star:
            return
        convert_value(self._plan, arg.value, form)
        self._sources |= self._assignments(arg.value)

    def _assignments(self, node: cst.CSTNode) -> set[cst.CSTNode]:
        """Returns the places that bind a name, as far as the script's text says."""
        scope = self._plan.source.scope(node)
        if not isinstance(node, cst.Name) or scope is None:
            return set()
        return {found.node for found in scope[node.value] if isinstance(found, Assignment)}

    # ---- variables

    def assignment(self, node: cst.CSTNode) -> None:
        """Changes what is assigned to a variable, parameter or key that holds a device."""
        if isinstance(node, cst.Assign):
            if any(self._holds_device(target.target) for target in node.targets):
                self._value(node.value)
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)):
            if node.value is not None and self._holds_device(node.target):
                self._value(node.value)
        elif isinstance(node, cst.Param):
            if node.default is not None and (self._holds_device(node.name) or node in self._sources):
                self._value(node.default)
        elif isinstance(node, cst.DictElement):
            if _DEVICE_NAME.fullmatch(text_of(node.key) or ""):
                self._value(node.value)
        elif (
            isinstance(node, cst.For)
            and isinstance(node.iter, (cst.List, cst.Tuple))
            and self._holds_device(node.target)
        ):
            self._value(node.iter)

    def _value(self, value: cst.BaseExpression) -> None:
        convert_value(self._plan, value, Form.TEXT)

    def _holds_device(self, target: cst.CSTNode) -> bool:
        return target in self._sources or self._is_device(target)

    def _is_device(self, node: cst.CSTNode) -> bool:
        """Returns whether an expression is a device or its name: `device`, `args.device`, `x.device.type`."""
        if isinstance(node, cst.Name):
            known = _DEVICE_NAME.fullmatch(node.value) is not None
            return known or not self._assignments(node).isdisjoint(self._sources)
        if isinstance(node, cst.Attribute):
            return node.attr.value == "type" or _DEVICE_NAME.fullmatch(node.attr.value) is not None
        if isinstance(node, cst.Subscript) and isinstance(node.slice[0].slice, cst.Index):
            return _DEVICE_NAME.fullmatch(text_of(node.slice[0].slice.value) or "") is not None
        if isinstance(node, cst.Call):
            if isinstance(node.func, cst.Name) and node.func.value == "str" and len(node.args) == 1:
                return self._is_device(node.args[0].value)
            return isinstance(node.func, cst.Attribute) and (
                node.func.attr.value in ("lower", "strip") and self._is_device(node.func.value)
            )
        return False

    # ---- comparisons

    def comparison(self, node: cst.CSTNode) -> None:
        """Changes `device.type == "cuda"`, `"cuda" in device` and `device.type in ("cuda", "xpu")`."""
        if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
            return
        operator, right = node.comparisons[0].operator, node.comparisons[0].comparator
        if not isinstance(operator, (cst.Equal, cst.NotEqual, cst.In, cst.NotIn)):
            return
        for side, other in ((node.left, right), (right, node.left)):
            if self._is_device(other):
                convert_value(self._plan, side, Form.TEXT)
