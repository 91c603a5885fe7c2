"""Which taints and conditions of a node say that its GPUs are not to be trusted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSigns:
    """Keys of taints and types of conditions that make the engines of a node unfit.

    A name that ends in ``*`` stands for all that begin so.
    """

    taints: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
