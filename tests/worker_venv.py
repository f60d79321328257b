"""Virtual environments such as workers have: all that is installed here, by links, but TensorFlow and this project."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

_LACKING = ("tensorflow", "tensorboard", "keras", "tf_keras", "episode_windows", "_editable_impl", "__editable__")


class WorkerVenv:
    """A virtual environment at `folder`; `python` is its interpreter."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
        self.packages = next(folder.glob("lib/*/site-packages"))
        for installed in {Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}:
            for entry in installed.iterdir():
                if not entry.name.lower().startswith(_LACKING) and entry.suffix != ".pth":
                    (self.packages / entry.name).symlink_to(entry)

    def install(self, wheel: Path) -> None:
        """As a worker of Beam does it: this very wheel in any case, then whatever it needs, of which nothing lacks."""
        pip = ["-m", "pip", "install", "--no-index", "--disable-pip-version-check", "--no-cache-dir"]
        self.run(*pip, "--upgrade", "--force-reinstall", "--no-deps", str(wheel))
        self.run(*pip, str(wheel))

    def run(self, *arguments: str, timeout: float = 120, **environment: str) -> str:
        """Run Python there, in a folder without modules; what it prints."""
        command = [str(self.python), *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment,
            cwd=self.python.parent,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
