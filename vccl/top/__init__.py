"""Shows the jobs of this user while they run or stand: ``python -m vccl.top``."""
