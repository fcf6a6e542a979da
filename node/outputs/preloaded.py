"""Imports of the first object of a process: the writers, and half a second of tables that highdicom reads.

Only the server that writer processes are forked from imports this, once for all of them.
"""

from __future__ import annotations

from importlib import import_module

from highdicom import _standard_utils

from node.output_kinds import OUTPUTS

for _kind in OUTPUTS.own.values():
    import_module(_kind.writer.partition(":")[0])
_standard_utils.get_sop_class_iod_map()
_standard_utils.get_iod_module_map()
_standard_utils.get_module_attribute_map()
