"""Networks without numbers: parameters have shapes but no storage until loaded weights replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

_FILLS: Final = (init.normal_, init.uniform_, init.kaiming_uniform_, Tensor.normal_)


@contextmanager
def without_numbers() -> Iterator[None]:
    """Build modules on the meta device, where they take no memory, and leave out what would give them numbers.

    On that device PyTorch 2.13 answers `normal_` and a product with a number in Python, and imports its compiler and
    sympy to do so: 1.5 s at every start, for numbers that are never used.
    """
    with torch.device("meta"), _NoNumbers():
        yield


class _NoNumbers(TorchFunctionMode):
    """Returns a tensor unchanged instead of filling or scaling it."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        if func in _FILLS:
            return args[0] if args else given["tensor"]
        if func is Tensor.mul and not isinstance(args[1], Tensor):
            return args[0]
        allowed: Callable[..., object] = torch.empty if func is torch.randn else func
        return allowed(*args, **given)
