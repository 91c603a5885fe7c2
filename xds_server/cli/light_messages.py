"""Load Envoy's message classes without validators, for a command that translates once and ends.

``envoy_data_plane`` makes each class a pydantic dataclass. The 536 classes of a translation take 0.4 s of CPU to
make, and their validators 0.4 s more at first use: half of ``switchgear translate``. Values come from validated
policies and typed code, so such a command gets plain dataclasses, each made at its first use. The server keeps the
validators.
"""

import dataclasses
import functools
import gc
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_MESSAGES: Final = "envoy_data_plane"
_GRPC: Final = ("grpc", "grpclib", "betterproto2.grpclib")
"""Modules that declare a service import these, 0.12 s in all, for its base classes."""

_allowed: Final[set[bool]] = set()


def allow_light_messages() -> None:
    """Let this process use them: it runs one command, and no server."""
    _allowed.add(True)


@contextmanager
def light_messages() -> Iterator[None]:
    """Make plain dataclasses of the message classes imported inside, where the process allows it.

    Classes imported earlier stay as they are.
    """
    if not _allowed or _MESSAGES in sys.modules:
        yield
        return
    import betterproto2  # noqa: PLC0415 - 0.1 s that `switchgear --help` has no use for
    import pydantic.dataclasses  # noqa: PLC0415 - as above

    # The original evaluates all annotations of a class once for each of its fields.
    betterproto2.Message._type_hints = classmethod(_type_hints)  # type: ignore[arg-type,assignment,method-assign]
    full, collecting = pydantic.dataclasses.dataclass, gc.isenabled()
    pydantic.dataclasses.dataclass = _plain_dataclass  # type: ignore[assignment]
    gc.disable()  # what an import makes stays
    absent = [name for name in _GRPC if name not in sys.modules]
    sys.modules.update({name: _Absent(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
        pydantic.dataclasses.dataclass = full
        if collecting:
            gc.enable()


class _Absent(types.ModuleType):
    """Stands for a module that is left out: each of its names is ``object``."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


def _plain_dataclass(**_settings: Any) -> Callable[[type], type]:
    return _dataclass_at_first_use


def _dataclass_at_first_use(cls: type) -> type:
    def initialize(self: Any, *args: Any, **values: Any) -> None:
        del cls.__init__  # type: ignore[misc]
        dataclasses.dataclass(eq=False, repr=False)(cls)  # Message has both
        self.__init__(*args, **values)

    cls.__init__ = initialize  # type: ignore[misc]
    return cls


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, vars(sys.modules[cls.__module__]), {})
