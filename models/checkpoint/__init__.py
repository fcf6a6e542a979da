"""Weights on disk: read, write, verify; `python -m models.checkpoint` imports published ones (design §4).

This file imports nothing: Python runs it before every module of this folder, and half of them need no torch.
"""
