# Everything below sets itself up in .venv; a machine with Python and make is enough.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help demo install check lint types test bench soak clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' Makefile

demo: install  ## roll out real episodes, build shards from them, train a Keras model from the shards
	$(RUN) examples/demo.py --folder demo

install: $(INSTALLED)  ## install the project and all it needs into .venv

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip  # the pip that Python 3.10 brings needs many minutes to resolve
	$(RUN) -m pip install --quiet --editable '.[dev]'
	touch $@

check: lint types test  ## all that CI runs

lint: install  ## style and common mistakes
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: install  ## mypy, strict
	$(RUN) -m mypy

test: install  ## the tests
	$(RUN) -m pytest -n auto

bench: install  ## speed and memory beside other systems; about 40 minutes, on a machine that does nothing else
	$(RUN) -m pip install --quiet --editable '.[bench]'
	$(RUN) benchmarks/bench_build.py
	$(RUN) benchmarks/bench_stream.py
	$(RUN) benchmarks/bench_growth.py
	$(RUN) benchmarks/bench_shuffle.py
	$(RUN) benchmarks/bench_overlap.py
	$(RUN) benchmarks/bench_plan.py
	$(RUN) benchmarks/bench_scale.py
	$(RUN) benchmarks/bench_workers.py
	$(RUN) benchmarks/bench_remote.py
	$(RUN) benchmarks/bench_verify.py

soak: install  ## random builds, killed and run again, verified, damaged and loaded; 20 minutes
	$(RUN) benchmarks/soak.py --minutes 20

clean:  ## remove all that the commands above have made
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
