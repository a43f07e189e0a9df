"""Runs the probes of a file in this process, whose cards pose as CUDA, and prints what became of each.

A probe is a function of the file whose name starts with "probe_". It passes if it returns.

    VDEV_POSE=cuda python tests/pose/probes.py habits_tensors.py
"""

import ast
import importlib
import json
import sys
import traceback
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Stands before the results, among all else that the probes print.
MARK = "probes: "


def names(file: str) -> list[str]:
    """Returns the names of the probes of a file, without running anything of it."""
    tree = ast.parse((FOLDER / file).read_text())
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("probe_")]


def outcome(module: object, name: str) -> str:
    """Runs a probe. Returns its traceback, or "" if it passed."""
    import torch

    try:
        getattr(module, name)()
        torch.cuda.synchronize()
    except BaseException:
        return traceback.format_exc()
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream(0))
        torch.cuda.set_device(0)
    return ""


if __name__ == "__main__":
    module = importlib.import_module(Path(sys.argv[1]).stem)
    results = {name: outcome(module, name) for name in names(sys.argv[1])}
    print(f"\n{MARK}{json.dumps(results)}")
