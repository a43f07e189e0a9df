"""Shows the jobs of this user while they run or hang: ``python -m vccl.top``."""
