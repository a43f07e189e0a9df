"""Settings for the tests of the sanitizer, in one process and on ranks."""

import os

# Before the first card is made.
os.environ.setdefault("VDEV_MEMORY", "2G")
os.environ.setdefault("VDEV_DEVICE_COUNT", "8")
