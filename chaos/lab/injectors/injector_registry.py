"""All injectors of a lab."""

from typing import Final

from chaos.lab.injectors.engine_injector import EngineInjector
from chaos.lab.injectors.gpu_injector import GpuInjector
from chaos.lab.injectors.link_injector import LinkInjector
from chaos.lab.injectors.load_injector import LoadInjector
from chaos.lab.injectors.policy_injector import PolicyInjector
from chaos.lab.injectors.process_injector import ProcessInjector
from chaos.lab.injectors.tap_injectors import ReportInjector, XdsTapInjector
from chaos.lab.lab_handles import InjectorFactory

INJECTORS: Final[tuple[InjectorFactory, ...]] = (
    LoadInjector,
    EngineInjector,
    GpuInjector,
    PolicyInjector,
    ProcessInjector,
    ReportInjector,
    LinkInjector,
    XdsTapInjector,
)
"""Factories of injectors for one lab; each kind of action has one injector."""
