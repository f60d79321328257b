"""A wheel of this project, made from what is installed: what workers elsewhere install, so that they run the same code.

    python -m pipeline.wheel FOLDER

Nothing but the standard library is needed, and no network. The same code gives the same bytes, from a clone or from
site-packages: no timestamp is in it. Its name has a build tag that is made from the content, so that two of them in one
folder are told apart. (A local part of the version would say as much, but with a plus sign, for which not every way
from a bucket to a worker need be made.)
"""

import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from shards.errors import OptionError

from .program import package_files

NAME = "episode-windows"
_TAG = "py3-none-any"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can tell


def write_wheel(folder: str | Path) -> Path:
    """Write the wheel of the project that is running; its path. Errors: OptionError if the project is not installed."""
    version, about = installed_metadata()
    name, files = wheel_files(version, package_files(), about)
    path = Path(folder, name)
    # Stored, not deflated: what a compressor makes of bytes differs from machine to machine, and here they are few.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file, data in files.items():
            entry = zipfile.ZipInfo(file, _EPOCH)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # a plain file, as Unix has it
            archive.writestr(entry, data)
    return path


def installed_metadata() -> tuple[str, dict[str, bytes]]:
    """The version that is installed, and {path below its .dist-info folder: bytes} of metadata and licences.

    Errors: OptionError if the project is not installed.
    """
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        installed = None
    if installed is None or installed.read_text("METADATA") is None:
        raise OptionError(
            f"{NAME} is not installed, and so cannot be sent to workers: from a clone, pip install --editable ."
        )
    names = ["METADATA", *(f"licenses/{name}" for name in sorted(installed.metadata.get_all("License-File") or []))]
    texts = {name: installed.read_text(name) for name in names}
    return installed.version, {name: text.encode() for name, text in texts.items() if text is not None}


def wheel_files(
    version: str, packages: Mapping[str, bytes], about: Mapping[str, bytes]
) -> tuple[str, dict[str, bytes]]:
    """The wheel's name and {path: bytes} of all that is in it, in order, from what the functions above give."""
    stem = f"{NAME.replace('-', '_')}-{version}"
    wheel = f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    files = {**packages, **{f"{stem}.dist-info/{name}": data for name, data in {**about, "WHEEL": wheel}.items()}}
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()]
    files[record] = ("".join(lines) + f"{record},,\n").encode()
    build = f"0{sha256(files[record]).hexdigest()[:12]}"  # must begin with a digit
    return f"{stem}-{build}-{_TAG}.whl", files


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    print(write_wheel(sys.argv[1]))
