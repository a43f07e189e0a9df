"""Checks that LibCST is there, and runs the command line."""

import importlib.util
import sys

if importlib.util.find_spec("libcst") is None:
    print("vccl.convert needs LibCST. Install it with: pip install 'vccl[convert]'", file=sys.stderr)
    sys.exit(2)

from vccl.convert.cli import main

sys.exit(main())
