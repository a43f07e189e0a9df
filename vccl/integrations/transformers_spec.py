"""Runs transformers' own test suite on the cards.

The suite imports a file of its working folder, which says how to use a device:

    echo 'from vccl.integrations.transformers_spec import *' > spec.py
    TRANSFORMERS_TEST_DEVICE_SPEC=spec.py pytest tests/models/gpt2
"""

from vccl import vdev
from vccl.integrations._needs import needs

needs("transformers", tried="5.23.0")

__all__ = ["DEVICE_COUNT_FN", "DEVICE_NAME", "EMPTY_CACHE_FN", "MANUAL_SEED_FN"]

DEVICE_NAME = "vdev"
DEVICE_COUNT_FN = vdev.device_count
EMPTY_CACHE_FN = vdev.empty_cache
MANUAL_SEED_FN = vdev.manual_seed
