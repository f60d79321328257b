"""Beam's own worker pools, on this machine or others, in place of local processes: each starts workers when asked to.

`--environment_type=EXTERNAL --environment_config=HOST:PORT,...` names them; the runner is the local one.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shards.errors import BuildError

from .beam_flags import flag_value

_SECONDS = 30  # in which a pool must start a worker
_servers: list[Any] = []


def pools_of(beam_args: Sequence[str]) -> list[str]:
    """The addresses of the pools; empty where the user named none.

    >>> pools_of(["--environment_type=EXTERNAL", "--environment_config=a:1,b:1"])
    ['a:1', 'b:1']
    """
    if (flag_value(beam_args, "environment_type") or "").upper() != "EXTERNAL":
        return []
    return [address for address in (flag_value(beam_args, "environment_config") or "").split(",") if address]


def pools_runner(pools: Sequence[str]) -> Any:
    """Beam's local runner, with workers from all pools in turn."""
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.transforms.environments import ExternalEnvironment

    return FnApiRunner(default_environment=ExternalEnvironment(_serve_in_turn(pools)))


def describe_grpc_error(error: BaseException) -> str | None:
    """What an error that comes over gRPC, from pools or a job server, means; None for any other."""
    if str(error).endswith("Channel closed prematurely."):
        return "a worker of a pool was lost or killed, perhaps for want of memory"
    if type(error).__name__ == "FutureTimeoutError":
        return "no job server answers: check --job_endpoint"
    return None


def _serve_in_turn(pools: Sequence[str]) -> str:
    """Start a pool, and return its address, that passes on what it is asked to each of some pools in turn.

    Beam's runner knows one pool.
    """
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

    turns = itertools.cycle(pools)

    class InTurn(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):  # type: ignore[misc]
        def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
            pool = next(turns)
            try:
                with grpc.insecure_channel(pool) as channel:
                    stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
                    return stub.StartWorker(request, timeout=_SECONDS, wait_for_ready=True)
            except grpc.RpcError as error:
                why = f"the worker pool at {pool} does not answer: {error.code().name.lower()}"
                return beam_fn_api_pb2.StartWorkerResponse(error=why)

    server = grpc.server(ThreadPoolExecutor(1))
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(InTurn(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    if not port:
        raise BuildError("no port is free for the worker pools")
    server.start()
    _servers.append(server)  # which would stop, were it collected
    return f"127.0.0.1:{port}"
