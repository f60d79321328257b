"""The wheel that workers install: what is in it, and that it installs and is made alike wherever it is made."""

import subprocess
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pipeline import wheel
from pipeline.program import package_files
from pipeline.wheel import wheel_files, write_wheel
from shards import OptionError
from worker_venv import WorkerVenv

ROOT = Path(__file__).parent.parent


def test_what_is_in_a_wheel() -> None:
    packages = {"shards/__init__.py": b"", "pipeline/plan.py": b"1\n"}

    name, files = wheel_files("0.1.0", packages, {"METADATA": b"Name: episode-windows\n", "licenses/LICENSE": b"L"})

    assert name == "episode_windows-0.1.0-0db212e118593-py3-none-any.whl"
    assert list(files.items()) == [
        ("shards/__init__.py", b""),
        ("pipeline/plan.py", b"1\n"),
        ("episode_windows-0.1.0.dist-info/METADATA", b"Name: episode-windows\n"),
        ("episode_windows-0.1.0.dist-info/licenses/LICENSE", b"L"),
        (
            "episode_windows-0.1.0.dist-info/WHEEL",
            b"Wheel-Version: 1.0\nGenerator: episode-windows\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
        (
            "episode_windows-0.1.0.dist-info/RECORD",
            b"shards/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"
            b"pipeline/plan.py,sha256=Q1WkaxnTSNwvV8BG-O9j1FOOu5NgAPPJ7pVKJ0YN2GU,2\n"
            b"episode_windows-0.1.0.dist-info/METADATA,sha256=dj6cQwJ3uIlsNPpD_n-6Uob8n3oU3xnwsvRULfUllMo,22\n"
            b"episode_windows-0.1.0.dist-info/licenses/LICENSE,sha256=ct_PsMRwrCVc3oP7j-ON6KEoGI4D6lulsqk62-oQYvo,1\n"
            b"episode_windows-0.1.0.dist-info/WHEEL,sha256=Q8Lqoe-A0nng3WhRmHVL-acR1G17_-5QkNiESTu7VWw,86\n"
            b"episode_windows-0.1.0.dist-info/RECORD,,\n",
        ),
    ]


def test_other_code_has_another_name() -> None:
    names = {wheel_files("0.1.0", {"shards/a.py": code}, {})[0] for code in (b"1", b"2", b"1")}

    assert len(names) == 2


def test_caches_and_hidden_files_stay_out(tmp_path: Path) -> None:
    for file in ("shards/a.py", "shards/__pycache__/a.pyc", "pipeline/.b.py.swp", "reader/deep/c.txt", "tests/d.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(file)

    assert package_files(tmp_path) == {"shards/a.py": b"shards/a.py", "reader/deep/c.txt": b"reader/deep/c.txt"}


def test_a_clone_and_site_packages_give_the_same_bytes_which_pip_installs(tmp_path: Path) -> None:
    here = write_wheel(tmp_path)
    venv = WorkerVenv(tmp_path / "venv")
    venv.install(here)
    (tmp_path / "again").mkdir()

    again = Path(venv.run("-m", "pipeline.wheel", str(tmp_path / "again")).strip())

    assert (again.name, again.read_bytes()) == (here.name, here.read_bytes())
    assert venv.run("-c", "import pipeline; print(pipeline.__file__)") == f"{venv.packages}/pipeline/__init__.py\n"
    with zipfile.ZipFile(here) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    tracked = subprocess.run(
        ["git", "ls-files", "shards", "pipeline", "reader"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(tracked.stdout.split()) <= set(names)
    about = f"episode_windows-{version('episode-windows')}.dist-info"
    assert names[-4:] == [f"{about}/{name}" for name in ("METADATA", "licenses/LICENSE", "WHEEL", "RECORD")]


def test_a_project_that_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(wheel, "distribution", absent)

    with pytest.raises(OptionError, match=r"^episode-windows is not installed.*: from a clone, pip install --editable"):
        write_wheel(tmp_path)
    assert not list(tmp_path.iterdir())
