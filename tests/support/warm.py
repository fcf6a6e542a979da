"""Reads highdicom's tables of the standard when it is imported, so that forked processes have them: 0.4 s each."""

from __future__ import annotations

from highdicom import _standard_utils

_standard_utils.get_module_attribute_map()
