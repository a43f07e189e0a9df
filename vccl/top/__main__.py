import sys

from vccl.top.cli import main

sys.exit(main())
