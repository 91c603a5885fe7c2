"""JSON Schema of scenario files for editors, and documentation of their fields and faults."""

from collections.abc import Mapping

from chaos.faults.fault import Fault
from chaos.faults.fault_registry import FAULT_KINDS
from chaos.scenario.scenario_model import Scenario
from policies.schema import FieldDoc, Schema, document_schema, fields_of

FAULT = "spec.faults[].fault"
"""Path of a fault; its settings are listed under its kind."""


def scenario_schema() -> Schema:
    """JSON Schema (draft 2020-12) of a scenario document."""
    return document_schema(Scenario)


def scenario_fields() -> Mapping[str, FieldDoc]:
    """All fields of a scenario by path."""
    return fields_of(Scenario)


def fault_kinds() -> Mapping[str, type[Fault]]:
    """Fault class by kind."""
    return dict(sorted(FAULT_KINDS.items(), key=lambda one: one[1].__name__))
