"""Ask pip-audit for known vulnerabilities of what a lock file names, and say plainly when nobody could answer.

python deploy/audit.py PIP_AUDIT LOCK    `make audit`

By itself pip-audit says "no known vulnerabilities" of packages that its database does not know, and ends with 1
both for a finding and for a database out of reach. Behind a mirror without such data everything would look clean.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

UNREACHABLE: Final = "not audited: the database of vulnerabilities cannot be reached from here"
SIGNS: Final = ("requests.exceptions.", "ServiceError", "blocking this service")
"""In the last remark of a pip-audit that did not get through to its database."""


def verdict(answer: str, remarks: str) -> tuple[int, Sequence[str]]:
    """Exit status, and lines that say why; ``answer`` is pip-audit's JSON, empty where it came to none.

    0 when nothing was found or the database is out of reach, 1 for findings, 2 when pip-audit itself failed.
    """
    if not answer.strip():
        last = (remarks.strip().splitlines() or ["it said nothing"])[-1]
        if any(sign in last for sign in SIGNS):
            return 0, [f"{UNREACHABLE} ({last})"]
        return 2, [f"not audited: pip-audit failed: {last}"]
    packages = json.loads(answer)["dependencies"]
    findings = [
        f"{package['name']} {package['version']}: {one['id']}"
        + (f", mended in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "")
        for package in packages
        for one in package.get("vulns", ())
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    asked = len(packages) - len(unknown)
    if not asked:
        return 0, [f"{UNREACHABLE} (what answers knows none of {len(packages)} packages)"]
    lines = [*findings, f"{asked} of {len(packages)} packages looked at, {len(findings)} known vulnerabilities"]
    if unknown:
        lines.append(f"not looked at: {', '.join(sorted(unknown))}")
    return int(bool(findings)), lines


def main(pip_audit: str, lock: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        asking = ["--requirement", lock, "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        writing = ["--format", "json", "--output", str(answer)]
        # Both arguments are the Makefile's own.
        done = subprocess.run([pip_audit, *asking, *writing], capture_output=True, text=True, check=False)  # noqa: S603
        status, lines = verdict(answer.read_text() if answer.exists() else "", done.stderr)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
