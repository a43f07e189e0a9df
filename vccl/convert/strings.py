"""Changes expressions that name a CUDA device: "cuda", "cuda:0", f"cuda:{rank}", and what is made of them."""

from __future__ import annotations

import re
from enum import Enum

import libcst as cst

from vccl.convert.plan import Plan

_DIGITS = re.compile(r"cuda:\d+")
# A string in one of these is a docstring, a part of a longer string, or a pattern.
_NOT_VALUES = (cst.Expr, cst.ConcatenatedString, cst.MatchValue)


class Form(Enum):
    """What "cuda" becomes."""

    DEVICE = "accelerator.current_accelerator()"  # a torch.device, where either will do
    TYPE = "accelerator.current_accelerator().type"  # a string
    # A string also where there is no accelerator: for a default that may not be used, or in a comparison.
    TEXT = "accelerator.current_accelerator"


def text_of(node: cst.CSTNode) -> str | None:
    """Returns the value of a string literal, or None if it is something else."""
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return node.evaluated_value
    return None


def starts_with_cuda(node: cst.CSTNode) -> bool:
    """Returns whether a literal begins with `cuda:`, also an f-string."""
    if isinstance(node, cst.FormattedString):
        first = node.parts[0] if node.parts else None
        return isinstance(first, cst.FormattedStringText) and first.value.startswith("cuda:")
    return (text_of(node) or "").startswith("cuda:")


def convert_value(plan: Plan, node: cst.BaseExpression, form: Form) -> bool:
    """Changes an expression that is known to name a device. Returns whether there was something to change."""
    if plan.is_handled(node):
        return False
    if isinstance(node, cst.IfExp):
        return _convert_several(plan, [node.body, node.orelse], Form.TYPE)
    if isinstance(node, cst.BooleanOperation):
        return _convert_several(plan, [node.left, node.right], Form.TYPE)
    if isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        return _convert_several(plan, [element.value for element in node.elements], Form.TEXT)
    if isinstance(node, cst.Dict):
        parts = [element for element in node.elements if isinstance(element, cst.DictElement)]
        return _convert_several(plan, [part for item in parts for part in (item.key, item.value)], Form.TEXT)
    if isinstance(node, cst.BinaryOperation):
        prefix = text_of(node.left) in ("cuda:", "cuda:%d", "cuda:%s", "cuda:%i")
        return prefix and _convert_literal(plan, node.left, form)
    if isinstance(node, cst.Call):
        return _convert_format(plan, node)
    return _convert_literal(plan, node, form)


def convert_by_shape(plan: Plan, node: cst.CSTNode) -> None:
    """Changes what names a device wherever it stands."""
    if plan.is_handled(node):
        return
    is_string = isinstance(node, (cst.SimpleString, cst.FormattedString))
    if is_string and isinstance(plan.source.parent(node), _NOT_VALUES):
        return
    if isinstance(node, cst.IfExp):
        values = {text_of(node.body), text_of(node.orelse)}
        if "cpu" in values and any(value and re.fullmatch(r"cuda(:\d+)?", value) for value in values):
            convert_value(plan, node, Form.TYPE)
    elif isinstance(node, cst.FormattedString):
        if starts_with_cuda(node) and _is_prefix_and_number(node):
            _convert_literal(plan, node, Form.TEXT)
    elif isinstance(node, cst.SimpleString):
        if _DIGITS.fullmatch(text_of(node) or "") and not _is_type(plan, node):
            _convert_literal(plan, node, Form.TEXT)
    elif isinstance(node, cst.Call):
        _convert_format(plan, node)
    elif isinstance(node, cst.BinaryOperation):
        convert_value(plan, node, Form.TEXT)


def _is_type(plan: Plan, node: cst.CSTNode) -> bool:
    """Returns whether a string belongs to an annotation, as in `Literal["cuda:0"]`."""
    return any(
        isinstance(above, cst.Annotation)
        or (isinstance(above, cst.Subscript) and plan.source.code(above.value).endswith("Literal"))
        for above in plan.source.ancestors(node)
    )


def _convert_several(plan: Plan, nodes: list[cst.BaseExpression], form: Form) -> bool:
    return any([convert_value(plan, node, form) for node in nodes])


def _is_prefix_and_number(node: cst.FormattedString) -> bool:
    """Returns whether an f-string is `cuda:` and one value, and so no longer text."""
    first, *rest = node.parts
    prefix = isinstance(first, cst.FormattedStringText) and first.value == "cuda:"
    return prefix and len(rest) == 1 and isinstance(rest[0], cst.FormattedStringExpression)


def _convert_format(plan: Plan, call: cst.Call) -> bool:
    """Changes `"cuda:{}".format(rank)`."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "format":
        return False
    literal = call.func.value
    if re.fullmatch(r"cuda:\{\w*\}", text_of(literal) or "") is None:
        return False
    return _convert_literal(plan, literal, Form.TEXT)


def _convert_literal(plan: Plan, node: cst.BaseExpression, form: Form) -> bool:
    if plan.is_handled(node):
        return False
    if text_of(node) == "cuda":
        spelled = plan.torch(node, form.value)
        if spelled is not None:
            plan.replace(node, f"str({spelled}())" if form is Form.TEXT else spelled)
        return True
    return starts_with_cuda(node) and _convert_numbered(plan, node)


def _convert_numbered(plan: Plan, node: cst.BaseExpression) -> bool:
    """Makes "cuda:0" an f-string that begins with the accelerator: its text is the type alone."""
    accelerator = plan.torch(node, "accelerator.current_accelerator()")
    if accelerator is None:
        return True
    if isinstance(node, cst.FormattedString):
        start = plan.source.span(node.parts[0])[0]
        plan.replace_span(start, start + len("cuda"), f"{{{accelerator}}}")
        plan.handle(node)
        return True
    assert isinstance(node, cst.SimpleString)
    if not node.raw_value.startswith("cuda:"):
        return False
    prefix = node.prefix.replace("u", "").replace("U", "")
    rest = node.raw_value.removeprefix("cuda").replace("{", "{{").replace("}", "}}")
    plan.replace(node, f"f{prefix}{node.quote}{{{accelerator}}}{rest}{node.quote}")
    return True
