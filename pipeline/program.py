"""The code that runs: workers on other machines must have that of the machine that launched the job."""

from functools import cache
from hashlib import sha256
from pathlib import Path

from shards.errors import BuildError

ROOT = Path(__file__).parent.parent  # where the packages were found
PACKAGES = ("shards", "pipeline", "reader")


def package_files(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> dict[str, bytes]:
    """{path below `root`: bytes} of the packages' files, but for caches and hidden ones."""
    found = {}
    for package in packages:
        for file in sorted((root / package).rglob("*")):
            parts = file.relative_to(root).parts
            if file.is_file() and "__pycache__" not in parts and not any(part.startswith(".") for part in parts):
                found["/".join(parts)] = file.read_bytes()
    return found


@cache
def program_digest() -> str:
    """The SHA-256 of the code that writes datasets, as this process has it: any change gives another one."""
    digest = sha256()
    for file, data in package_files(packages=("shards", "pipeline")).items():
        digest.update(f"{file}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def check_program(launched: str) -> None:
    """BuildError if this process has other code than the one with that digest, which would write other bytes."""
    if program_digest() != launched:
        raise BuildError(
            f"a worker has another version of episode-windows, at {ROOT}, than the machine that launched the job:"
            " install the same on all machines"
        )
