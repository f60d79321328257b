"""Which package may import which, and what each starts without."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pipeline
import reader
import shards

ROOT = Path(__file__).parent.parent
PACKAGES = {"shards", "pipeline", "reader"}


def test_the_three_packages_come_from_this_project() -> None:
    assert {name: Path(module.__file__ or "").parent for name, module in sys.modules.items() if name in PACKAGES} == {
        name: ROOT / name for name in PACKAGES
    }


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("shards", {"tensorflow", "apache_beam", "pipeline", "reader", "keras"}),
        ("shards.__main__", {"tensorflow", "apache_beam", "pipeline", "reader", "keras"}),
        ("pipeline", {"tensorflow", "apache_beam", "reader", "keras"}),
        ("pipeline.__main__", {"tensorflow", "apache_beam", "reader", "keras"}),
        ("pipeline.transforms", {"tensorflow", "reader", "keras"}),
        ("reader", {"apache_beam", "pipeline"}),
    ],
)
def test_a_package_starts_without_what_it_must_not_need(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "\n"


@pytest.mark.parametrize(("package", "others"), [("shards", set()), ("pipeline", {"shards"}), ("reader", {"shards"})])
def test_packages_import_one_another_one_way(package: str, others: set[str]) -> None:
    imported = set()
    for file in (ROOT / package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
    assert imported & PACKAGES == others


def test_what_each_package_offers_is_pinned() -> None:
    assert sorted(shards.__all__) == [
        "BuildError",
        "Dataset",
        "DatasetError",
        "DatasetNotFoundError",
        "EpisodeError",
        "EpisodeWindowsError",
        "Feature",
        "FormatVersionError",
        "Manifest",
        "ManifestError",
        "OptionError",
        "OutputError",
        "ShardError",
        "SplitNotFoundError",
        "Windows",
        "load_manifest",
        "open_dataset",
    ]
    assert sorted(pipeline.__all__) == ["BuildOptions", "DatasetPlan", "build", "plan"]
    assert sorted(reader.__all__) == ["Resume", "load"]


def test_devices_may_be_configured_after_the_reader_is_imported() -> None:
    code = "import tensorflow as tf, reader; cpu = tf.config.list_physical_devices('CPU')[0];"
    code += "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2);"
    code += "print(len(tf.config.list_logical_devices('CPU')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "2\n"


def test_workers_import_the_job_without_tensorflow(tmp_path: Path) -> None:
    blocked = tmp_path / "tensorflow"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ImportError('no TensorFlow on workers')")
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", np.zeros(100, np.float32))
    command = [sys.executable, "-m", "pipeline", "build", "--input", str(tmp_path / "in"), "--output"]
    command += [str(tmp_path / "out"), "--window_length", "10", "--num_shards", "2", "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "out" / "manifest.json").exists()
