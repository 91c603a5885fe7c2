"""Every code a policy can be answered with: what it means, an example that draws it, and the way out.

``docs/codes.md`` and ``switchgear explain SG...`` are made from this table. Codes are stable: one that is no
longer used is not given out again. An example is YAML; where it leaves out apiVersion and metadata they do not
matter. What depends on files and not on text has a situation instead.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.codes.code import Code
from policies.codes.error_codes import ERRORS
from policies.codes.lint_codes import ADVICE
from policies.codes.operating_codes import OPERATING

CODES: Final[Mapping[str, Code]] = MappingProxyType({one.code: one for one in (*ERRORS, *ADVICE)})
"""Every code, errors (SG0xx) before advice (SG1xx)."""

REMARKS: Final[Mapping[str, Code]] = MappingProxyType({one.code: one for one in OPERATING})
"""Every code of what runs (SG2xx). No file draws them."""
