"""Run pip-audit on a lock file, and report clearly when no database answered.

python deploy/audit.py PIP_AUDIT LOCK    `make audit`

pip-audit reports "no known vulnerabilities" for packages its database lacks, and exits 1 both for a finding and
for an unreachable database. Behind a mirror without that data every package would look clean.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

UNREACHABLE: Final = "not audited: the vulnerability database is unreachable"
SIGNS: Final = ("requests.exceptions.", "ServiceError", "blocking this service")
"""Signs of an unreachable database in the last line of stderr."""


def verdict(answer: str, remarks: str) -> tuple[int, Sequence[str]]:
    """Exit status and report lines; ``answer`` is pip-audit's JSON, empty without a result.

    0: no findings, or database unreachable. 1: findings. 2: pip-audit failed.
    """
    if not answer.strip():
        last = (remarks.strip().splitlines() or ["no output"])[-1]
        if any(sign in last for sign in SIGNS):
            return 0, [f"{UNREACHABLE} ({last})"]
        return 2, [f"not audited: pip-audit failed: {last}"]
    packages = json.loads(answer)["dependencies"]
    findings = [
        f"{package['name']} {package['version']}: {one['id']}"
        + (f", fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "")
        for package in packages
        for one in package.get("vulns", ())
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    asked = len(packages) - len(unknown)
    if not asked:
        return 0, [f"{UNREACHABLE} (it knows none of {len(packages)} packages)"]
    lines = [*findings, f"{asked} of {len(packages)} packages audited, {len(findings)} known vulnerabilities"]
    if unknown:
        lines.append(f"not audited: {', '.join(sorted(unknown))}")
    return int(bool(findings)), lines


def main(pip_audit: str, lock: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        asking = ["--requirement", lock, "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        writing = ["--format", "json", "--output", str(answer)]
        # Both arguments come from the Makefile.
        done = subprocess.run([pip_audit, *asking, *writing], capture_output=True, text=True, check=False)  # noqa: S603
        status, lines = verdict(answer.read_text() if answer.exists() else "", done.stderr)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
