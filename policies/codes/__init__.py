"""Every code: title, cause, fix, and an example that draws it.

``docs/codes.md`` and ``switchgear explain SG...`` are generated from this table. Codes are stable; a retired one
is not reused. An example is YAML, and may omit apiVersion and metadata. Codes that no text can draw have a
situation instead.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.codes.code import Code
from policies.codes.error_codes import ERRORS
from policies.codes.lint_codes import ADVICE
from policies.codes.operating_codes import OPERATING

CODES: Final[Mapping[str, Code]] = MappingProxyType({one.code: one for one in (*ERRORS, *ADVICE)})
"""Every code of policy files: errors (SG0xx), then warnings (SG1xx)."""

REMARKS: Final[Mapping[str, Code]] = MappingProxyType({one.code: one for one in OPERATING})
"""Every code of a running server (SG2xx)."""
