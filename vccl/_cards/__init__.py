"""Holds what ``torch.vdev`` and cards that pose as CUDA have in common."""
