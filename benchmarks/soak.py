"""Random datasets are built, interrupted at random moments, verified, loaded and damaged, until the time is up.

    python benchmarks/soak.py --minutes 20 --seed 0

Each round makes random episodes and random options. Real builds of them are killed, whichever process and whenever,
and run again, until one ends well. Then, and after each of them, the output must hold no dataset, or exactly the bytes
of a build that nothing interrupted. `python -m shards verify --source` must find nothing wrong with it, an epoch of
`reader.load` must have each window once and right, and what is then changed, cut or taken away must be found.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from pipeline import BuildOptions, plan
from pipeline.publish import publish
from pipeline.staging import read_task, stage_plan, task_places
from pipeline.write import write_shard
from reader import load
from shards import DatasetNotFoundError, EpisodeError, OptionError, load_manifest, open_dataset

_DTYPES = ("<f4", ">f4", "<f8", "<i2", ">i4", "u1", "?", "<c8", "<f2", "<i8")
_SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
_IMPORTING = (
    "in _get_module_details",
    "<frozen importlib._bootstrap",
)  # while modules are imported, Ctrl-C is still told by Python or NumPy
_REFUSED = (EpisodeError, OptionError)
_PYTHON = (sys.executable, "-m")


def main() -> None:
    """Run rounds until the time is up; the last line is the count of everything, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, counts, number = time.monotonic() + 60 * given.minutes, Counter[str](), given.seed
    while time.monotonic() < end:
        before = counts.copy()
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            _round(Path(folder), random.Random(number), counts)
        print(f"round {number}: {dict(counts - before)}", flush=True)
        number += 1
    counts["rounds"] = number - given.seed
    print(json.dumps(dict(sorted(counts.items()))))


def _round(folder: Path, chance: random.Random, counts: Counter[str]) -> None:
    source, output, expected = folder / "in", folder / "out", folder / "expected"
    _make_episodes(source, chance)
    options = _make_options(chance)
    try:
        counts["windows"] += _build_here(source, expected, options)
    except _REFUSED:  # such as more shards than windows, or windows than steps
        counts["refused"] += 1
        return
    whole = _digests(expected)
    _build_until_whole(source, output, options, whole, chance, counts)
    assert _verify(output, source) == 0, "verify finds faults in what was built"
    counts["verified"] += 1
    _load(output, chance)
    counts["loaded"] += 1
    _damage(output, chance)
    assert _verify(output) == 1, "verify does not find the damage"
    counts["damage found"] += 1


def _make_episodes(folder: Path, chance: random.Random) -> None:
    folder.mkdir()
    values = np.random.default_rng(chance.getrandbits(32))
    dtypes = [chance.choice(_DTYPES) for _ in range(chance.randint(1, 3))]
    shapes = [tuple(chance.randint(1, 4) for _ in range(chance.randint(0, 2))) for _ in dtypes]
    kind = chance.choice(["plain", "plain", "fields", "stored", "compressed"])
    for i in range(chance.choice([1, 3, 20])):
        steps = chance.choice([1, 30, 300, 20_000])
        arrays = [_values(values, dtype, (steps, *shape)) for dtype, shape in zip(dtypes, shapes, strict=True)]
        file = folder / f"g{i % 3}" / f"{i}.{'npz' if kind in {'stored', 'compressed'} else 'npy'}"
        file.parent.mkdir(exist_ok=True)
        if kind == "plain":
            np.save(file, np.asfortranarray(arrays[0]) if chance.random() < 0.3 else arrays[0])
        elif kind == "fields":
            fields = np.dtype([(f"x{j}", array.dtype, array.shape[1:]) for j, array in enumerate(arrays)])
            records = np.empty(steps, fields)
            for j, array in enumerate(arrays):
                records[f"x{j}"] = array
            np.save(file, records)
        else:
            save = np.savez if kind == "stored" else np.savez_compressed
            save(file, gain=np.float32(i), **{f"x{j}": array for j, array in enumerate(arrays)})


def _values(values: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "?":
        return values.integers(0, 2, shape).astype(bool)
    return (100 * values.standard_normal(shape)).astype(dtype)


def _make_options(chance: random.Random) -> dict[str, Any]:
    length = chance.choice([1, 5, 16, 100])
    options: dict[str, Any] = {
        "window_length": length,
        "shift": chance.choice([max(1, length // 4), length, 2 * length]),
        "stride": chance.choice([1, 1, 3]),
        "tail": chance.choice(["drop", "pad", "align"]),
        "windows_per_record": chance.choice([1, 1, 1, 4, "auto"]),
        "seed": chance.randint(0, 9),
        "splits": chance.choice([{"train": "1"}, {"train": "0.8", "test": "0.2"}]),
    }
    if len(options["splits"]) == 2:
        options |= chance.choice([{}, {"split_by": "time"}, {"split_by": "hash"}, {"group_by": "g[0-9]"}])
    options |= chance.choice([{"num_shards": chance.choice([1, 4, 30])}, {"shard_size": 2**20}])
    return options


def _flags(options: dict[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)

    return [part for name, value in options.items() for part in (f"--{name}", text(value))]


def _build_here(source: Path, output: Path, options: dict[str, Any]) -> int:
    """Build without Beam, in this process; returns the windows."""
    planned = plan(BuildOptions((str(source),), str(output), name="soak", **options))
    stage_plan(planned)
    done = [write_shard(planned.recipe, read_task(planned.staging, place)) for place in task_places(planned.staging)]
    publish(planned.output, planned.staging, done, planned.manifest.fingerprint)
    return planned.manifest.windows


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.is_file()}


def _build_until_whole(
    source: Path,
    output: Path,
    options: dict[str, Any],
    whole: dict[str, str],
    chance: random.Random,
    counts: Counter[str],
) -> None:
    flags, duration = _flags(options), 4.0
    replacing = False
    while True:
        begun = time.monotonic()
        moment = chance.uniform(0, 1.2 * duration) if chance.random() < 0.75 else None
        killed = _build(source, output, [*flags, *(["--overwrite"] if replacing else [])], moment, chance)
        counts["builds"] += 1
        if killed:
            counts[killed] += 1
        else:
            duration = time.monotonic() - begun
        try:
            load_manifest(output)
        except DatasetNotFoundError:
            assert killed, "a build ended well and left no dataset"
            continue
        assert _digests(output) == whole, "not the bytes of a build that nothing interrupted"
        if not killed or not replacing:
            if replacing or chance.random() < 0.7:
                return
            replacing = True  # by itself, which shows whether the old one is there until the new one is


def _build(source: Path, output: Path, flags: list[str], moment: float | None, chance: random.Random) -> str:
    """Run a build, and kill one of its processes after so many seconds; what was done, or "" if it ended well."""
    command = [*_PYTHON, "pipeline", "build", "--input", source, "--output", output, "--name", "soak"]
    command += ["--workers", str(chance.choice((1, 2, 3, 5))), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    done, below = "", list[int]()
    try:
        if moment is not None:
            time.sleep(moment)
            below = _descendants(process.pid)
            victim = chance.choice([process.pid, process.pid, *below])
            number = chance.choice(_SIGNALS) if victim == process.pid else signal.SIGKILL
            if process.poll() is None:
                os.kill(victim, number)
                done = f"{number.name} of {'the command' if victim == process.pid else 'a process of it'}"
        _, error = process.communicate(timeout=120)
    except ProcessLookupError:  # it had just ended
        _, error = process.communicate(timeout=120)
        done = ""
    finally:
        process.kill()
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in below):
        assert time.monotonic() < deadline, "a process outlived its build"
        time.sleep(0.05)
    if process.returncode == 0:
        return ""
    assert done, f"a build that nobody touched failed: {error}"
    assert "Traceback" not in error or any(part in error for part in _IMPORTING), error
    return done


def _descendants(parent: int) -> list[int]:
    found, above = [], [parent]
    while above:
        task = Path(f"/proc/{above.pop()}/task")
        try:
            children = [int(pid) for each in task.iterdir() for pid in (each / "children").read_text().split()]
        except OSError:
            continue
        found += children
        above += children
    return found


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _verify(output: Path, source: Path | None = None) -> int:
    command = [*_PYTHON, "shards", "verify", output, *(["--source", source] if source else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if source is not None and done.returncode:
        print(done.stdout, done.stderr)
    return done.returncode


def _load(output: Path, chance: random.Random) -> None:
    """Every window comes once in an epoch, and is the one of this place."""
    dataset = open_dataset(output)
    for split, windows in dataset.items():
        where, features = windows.provenance(), [feature.name for feature in dataset.manifest.features]
        places = {
            place: i for i, place in enumerate(zip(where["episode"].tolist(), where["start"].tolist(), strict=True))
        }
        verify = chance.random() < 0.5
        batches = load(
            output, split, batch_size=chance.choice([1, 7, 256, 4096]), seed=chance.randint(0, 9), provenance=True,
            shuffle=chance.random() < 0.8, pool=chance.choice([1, 64]), verify=verify,
        )  # fmt: skip
        seen = []
        for batch in batches:
            rows = [
                places[place]
                for place in zip(batch["episode"].numpy().tolist(), batch["start"].numpy().tolist(), strict=True)
            ]
            seen += rows
            expected = windows[rows]
            for name in features:
                assert batch[name].numpy().tobytes() == expected[name].tobytes(), name
            if len(seen) > 20_000:  # enough of a large one
                break
        else:
            assert sorted(seen) == list(range(len(windows)))
        assert len(set(seen)) == len(seen)


def _damage(output: Path, chance: random.Random) -> None:
    file = output / chance.choice(sorted(name for name in os.listdir(output) if name != "manifest.json"))
    how = chance.choice(["flip", "flip", "cut", "delete"])
    if how == "delete":
        file.unlink()
    elif how == "cut":
        os.truncate(file, chance.randrange(file.stat().st_size))
    else:
        with file.open("r+b") as opened:
            at = chance.randrange(file.stat().st_size)
            opened.seek(at)
            byte = opened.read(1)[0]
            opened.seek(at)
            opened.write(bytes([byte ^ (1 << chance.randrange(8))]))


if __name__ == "__main__":
    main()
