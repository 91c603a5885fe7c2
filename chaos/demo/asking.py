"""Ask the control plane why, with the command that people have, and show what it says."""

import asyncio
import os
import sys
from typing import Final

from chaos.demo import screen
from chaos.demo.scene import Scene
from chaos.demo.verdict import Answer, missing

_LONGEST_S: Final = 30.0

_AGAIN_S: Final = 0.2


async def ask(scene: Scene, name: str, *expected: str, until_s: float = 0.0) -> None:
    """Take down and show what ``switchgear why NAME`` prints; ``expected`` are words that must be in it.

    What is asked about can change while the question is on its way, most of all on a machine that is busy: until
    ``until_s`` of the scene it is asked again, and the last answer is the one that counts.
    """
    while True:
        answer = Answer(time_s=scene.now_s, name=name, text=await _why(scene, name), expected=expected)
        if not missing(answer) or scene.now_s >= until_s:
            break
        await asyncio.sleep(_AGAIN_S)
    scene.answers.append(answer)
    scene.console.print(screen.asked(answer))


async def _why(scene: Scene, name: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "xds_server", "why", name, "--admin", scene.stage.admin_url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": str(scene.console.width - screen.QUOTE_COLUMNS)},
    )
    try:
        async with asyncio.timeout(_LONGEST_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return f"no answer within {_LONGEST_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
    return said.decode(errors="replace").rstrip()
