"""Episode `.npy` files in, a dataset of windows in TFRecord shards out, with Apache Beam.

from pipeline import BuildOptions, build, plan
build(BuildOptions(inputs=("episodes/",), output="out", window_length=64, shift=16))
"""

from .draft import DatasetPlan
from .job import build, plan
from .options import BuildOptions

__all__ = ["BuildOptions", "DatasetPlan", "build", "plan"]
