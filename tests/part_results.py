"""Files with the results of real parts, for docs/compatibility.md, in the folder that ``PART_RESULTS`` names.

Without the variable nothing is written.
"""

import datetime as dt
import json
import os
from pathlib import Path
from typing import Final

from deploy.compatibility import PartResult, as_json

FOLDER_VARIABLE: Final = "PART_RESULTS"


def record(result: PartResult) -> None:
    """Write the file of a result, where a folder is named."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / result.file_name).write_text(json.dumps(as_json(result)) + "\n")


def recorded_skip(product: str, version: str, reason: str) -> PartResult:
    """The recorded result of a supported version that did not run; ``reason`` is one line."""
    result = PartResult(
        product=product, version=version.removeprefix("v"), outcome="skipped", day=today(), reason=reason
    )
    record(result)
    return result


def today() -> str:
    """Today in UTC, such as 2026-11-23."""
    return dt.datetime.now(dt.UTC).date().isoformat()
