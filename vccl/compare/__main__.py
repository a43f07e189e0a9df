"""Runs the command line."""

import sys

from vccl.compare.cli import main

sys.exit(main())
