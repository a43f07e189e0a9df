import sys

from vccl.replay.cli import main

sys.exit(main())
