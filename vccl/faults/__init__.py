"""Faults on demand: ranks that die, stall, or compute wrong numbers, at a place that a plan names.

    with vccl.faults.plan("rank=1,op=all_reduce,n=3,at=during,do=kill"):
        train()

A plan also comes from VCCL_FAULTS, from ``vrun --faults``, and from the mark ``@pytest.mark.faults`` of a
test. docs/inside/faults.md has its words. ``python -m vccl.faults soak`` runs a script under random plans.
"""

from .plans import Struck, phase, plan, step, struck

__all__ = ["Struck", "phase", "plan", "step", "struck"]
