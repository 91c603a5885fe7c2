"""Ask the control plane why, with the command that people have, and show what it says."""

import asyncio
import os
import sys
from typing import Final

from chaos.demo import screen
from chaos.demo.scene import Scene
from chaos.demo.verdict import Answer

_LONGEST_S: Final = 30.0


async def ask(scene: Scene, name: str, *expected: str) -> None:
    """Take down and show what ``switchgear why NAME`` prints; ``expected`` are words that must be in it."""
    time_s = scene.now_s
    answer = Answer(time_s=time_s, name=name, text=await _why(scene, name), expected=expected)
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
