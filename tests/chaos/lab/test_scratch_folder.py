"""What a lab that was killed left behind is gone when the next one opens."""

import signal
import subprocess
import sys
from pathlib import Path

from chaos.lab.scratch_folder import remove_stale_folders, scratch_folder

HOLDER = """
import sys, time
from pathlib import Path
from chaos.lab.scratch_folder import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_scratch_folder_is_deleted_at_the_end(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "logs").mkdir()
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_only_stale_folders_are_removed(tmp_path: Path) -> None:
    others = tmp_path / "switchgear-lab-of-others"
    others.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        remove_stale_folders(tmp_path)
        assert left.is_dir()
        holder.send_signal(signal.SIGKILL)
    assert left.is_dir()
    with scratch_folder(tmp_path) as folder:
        assert set(tmp_path.iterdir()) == {others, folder}
