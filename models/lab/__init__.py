"""The laboratory: phantoms, training with its tasks and losses, evaluation, and the comparison with recorded arrays.

The commands in front of it are `models.train`, `.evaluate`, `.golden` and `.phantoms`. It stands above `node.read`,
and what a node needs to read films imports nothing from here (tests/repository/test_architecture.py).
"""
