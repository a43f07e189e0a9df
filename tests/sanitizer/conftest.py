"""What the suite of racing and right programs needs before the first card is made."""

import os
import sys
from pathlib import Path

os.environ.setdefault("VDEV_MEMORY", "2G")
os.environ.setdefault("VDEV_DEVICE_COUNT", "8")

# For the names of collectives that torch has renamed.
sys.path.append(str(Path(__file__).resolve().parents[1] / "distributed"))
