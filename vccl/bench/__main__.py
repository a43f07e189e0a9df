import sys

from vccl.bench.cli import main

sys.exit(main())
