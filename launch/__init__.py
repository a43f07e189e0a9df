"""Holds vrun, which is torchrun with defaults that suit virtual cards, and with pretended hosts."""
