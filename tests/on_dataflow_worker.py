"""What a worker of Dataflow does with a job, in a process without TensorFlow: run the staged graph, and tell of it.

    python on_dataflow_worker.py PIPELINE RESULT

PIPELINE is the staged `pipeline.pb`. RESULT becomes JSON: where the project was imported from, which of the modules
that workers have no use for were, and the user's counters.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import EmbeddedPythonEnvironment


def main(staged: str, result: str) -> None:
    """Run a pipeline, each of its Docker containers being this process."""
    assert find_spec("tensorflow") is None
    proto = beam_runner_api_pb2.Pipeline.FromString(Path(staged).read_bytes())
    here = EmbeddedPythonEnvironment.default().to_runner_api(None)
    for environment in proto.components.environments.values():
        environment.CopyFrom(here)
    done = FnApiRunner().run_via_runner_api(proto, PipelineOptions([]))
    done.wait_until_finish()
    counters = done.metrics().query(beam.metrics.MetricsFilter().with_namespace("episode_windows"))["counters"]
    modules = {name for name in ("tensorflow", "keras", "reader") if name in sys.modules}
    import pipeline

    told = {
        "project": pipeline.__file__,
        "modules": sorted(modules),
        "counters": {counter.key.metric.name: counter.committed for counter in counters},
    }
    Path(result).write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
