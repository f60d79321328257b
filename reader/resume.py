"""Training that goes on where it was killed: checkpoints of the model together with the place in the stream."""

import json
import os
import re
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
import tensorflow as tf

from shards.errors import OptionError

_OUT_OF_DATA = "Your input ran out of data"  # how Keras's warning begins


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the model, its optimizer and the place in the stream; the same script, run again, goes on from there.

        train = load("windows", batch_size=256, targets="same")
        model.fit(train, epochs=10, shuffle=False, callbacks=[Resume("run", train, every=500)])

    folder: where the newest checkpoint is kept, for this training alone, which is one process.
    every: save after so many steps of each epoch, besides its end. None: only at its end.

    A training that was killed at any moment ends with the same weights, bit for bit, as one that was not, where
    TensorFlow computes the same twice (`tf.config.experimental.enable_op_determinism`). Saved are all variables of the
    model (with the seeds of its random layers), of its optimizers and of its metrics, so that the loss of an epoch that
    was broken is that of the whole of it. Not saved is what other callbacks remember, or TensorFlow's random numbers
    outside of Keras. With another number of replicas, it goes on with the same global batches, and with the moving
    statistics and random layers of the first replica.

    Put it last in `callbacks`: it then saves an epoch after the others have seen its end. What follows the last step of
    an epoch, such as validation, is part of that epoch: nothing is saved in between. Where all epochs are done already,
    `fit` returns at once with the final weights. `began` is (epoch, step) where `fit` went on, None if it began anew.
    The history has the epochs since; in the first of them, the progress bar counts the steps since.

    Errors: OptionError when made, or when `fit` begins, if the checkpoint is of another model or of other batches.
    """

    def __init__(self, folder: str | Path, train: Any, every: int | None = None) -> None:
        super().__init__()
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise OptionError(f"folder must be the path of a folder for checkpoints, not {folder!r}")
        if not hasattr(train, "seek") or not hasattr(train, "course"):
            raise OptionError(
                f"train must be what load returned, not {train!r}: only that can begin at any step."
                " Give load a map_fn instead of mapping its dataset"
            )
        if train.course.epochs != 1:
            raise OptionError(
                f"train has epochs={train.course.epochs} in one iteration, but fit iterates once for each epoch:"
                " leave out epochs in load, and give them to fit"
            )
        if every is not None and (not isinstance(every, int | np.integer) or isinstance(every, bool) or every < 1):
            raise OptionError(f"every must be a whole number of steps, 1 or more, or None, not {every!r}")
        self.began: tuple[int, int] | None = None
        self._folder, self._train, self._every = os.fspath(folder), train, every
        self._partial = ExitStack()  # in the epoch that begins in its middle

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the newest checkpoint, if there is one."""
        steps = self._train.steps_per_epoch
        if self.params.get("steps") != steps:
            raise OptionError(
                f"fit takes {self.params.get('steps')} steps for an epoch, and the stream has {steps}:"
                " give fit the dataset that Resume was given, and no steps_per_epoch"
            )
        self._partial.close()
        self._prepare()
        self.began, newest = None, self._manager.latest_checkpoint
        if newest is not None:
            self._restore(newest, replicas=self._compare(newest))
            self.began = int(self._epoch.numpy()), int(self._step.numpy())
            self._running = [part.numpy() for part in self._metrics]
        self.model._initial_epoch = self.began and self.began[0]  # as Keras's own BackupAndRestore does

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Let the stream begin with the first step to take of this epoch."""
        self._now = epoch, 0
        if self.began is not None and self.began[0] == epoch:
            self._now = self.began
        self._first = self._now[1]
        self._train.seek(*self._now)
        if self._first:
            for part, value in zip(self._metrics, self._running, strict=True):
                part.assign(value)  # Keras has just reset them
            self._partial.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", _OUT_OF_DATA)  # it expected the whole epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """End the epoch that began in its middle after its last step, as Keras does where the data end.

        It must not ask for more data: in the step that fails, the optimizer counts on and random layers draw.
        """
        if self._now[1] == self._train.steps_per_epoch:
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save every so many steps, and where another callback stops the training."""
        (epoch, before), last = self._now, self._train.steps_per_epoch
        step = min(self._first + batch + 1, last)  # an execution of several steps may have found fewer
        self._now = epoch, step
        due = self._every is not None and step // self._every > before // self._every
        if step < last and (due or self.model.stop_training):
            self._save(epoch, step)

    def on_test_begin(self, logs: Any = None) -> None:
        """The steps of the epoch are over."""
        self._partial.close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, unless the epoch was stopped before its end."""
        self._partial.close()
        if self._now[1] == self._train.steps_per_epoch:
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        """Let another `fit` of this model begin where it is told to."""
        self.model._initial_epoch = None

    def _prepare(self) -> None:
        """Gather all there is to save, and clean up after a run that was killed."""
        model, strategy = self.model, self.model.distribute_strategy
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise OptionError(
                "Resume cannot tell several workers apart, which would write to one folder: use one worker"
            )
        spec = self._train.element_spec
        if all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec)):  # else Keras has built all
            inputs = tf.nest.map_structure(lambda part: keras.KerasTensor(part.shape.as_list(), part.dtype.name), spec)
            try:
                model._symbolic_build(data_batch=inputs)
            except Exception as error:  # of whatever kind; a train_step of the user's own may use batches otherwise
                if not model.variables or not all(layer.built for layer in model.layers):
                    raise OptionError(f"the model cannot be built: call it on a batch before fit ({error})") from error
        optimizers = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if not all(optimizer.built for optimizer in optimizers):
            raise OptionError(
                "the model has an optimizer without variables, which cannot be restored:"
                " call optimizer.build(variables) before fit"
            )
        trained = [variable for optimizer in optimizers for variable in optimizer.variables]
        metrics = model.metrics_variables
        self._about = {
            "identity": self._train.course.identity,
            "replicas": strategy.num_replicas_in_sync,
            "variables": _described([*model.variables, *trained, *metrics]),
        }
        self._metrics = [part for parts in _parts(metrics) for part in parts]
        self._epoch, self._step = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        self._checkpoint = tf.train.Checkpoint(
            about=tf.Variable(json.dumps(self._about), trainable=False),
            epoch=self._epoch,
            step=self._step,
            shared=[variable.value for variable in (*model.trainable_variables, *trained)],
            # Replicas have moving statistics, seeds and metrics of their own.
            state=_parts([variable for variable in model.variables if not variable.trainable]),
            metrics=_parts(metrics),
        )
        # It writes the checkpoint, then renames the file that names the newest, then deletes the one before. The next
        # save takes the names of one that was killed, but for what was written to be renamed.
        self._manager = tf.train.CheckpointManager(self._checkpoint, self._folder, max_to_keep=1)
        tf.io.gfile.makedirs(self._folder)
        for pattern, remove in (("checkpoint.tmp*", tf.io.gfile.remove), ("ckpt-*_temp", tf.io.gfile.rmtree)):
            for left in tf.io.gfile.glob(os.path.join(self._folder, pattern)):
                remove(left)

    def _compare(self, newest: str) -> int:
        """How many replicas wrote this checkpoint.

        Errors: OptionError if it is none of ours, or of another model or stream.
        """
        other = f" or choose another folder than {self._folder}, which holds the checkpoint of another training"
        try:
            about = json.loads(tf.train.load_checkpoint(newest).get_tensor("about/.ATTRIBUTES/VARIABLE_VALUE"))
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise OptionError(
                f"{newest} is no checkpoint that Resume can read: choose another folder, or empty this one ({error})"
            ) from error
        there, here = about["variables"], self._about["variables"]
        if there != here:
            pairs = zip([*there, None], [*here, None], strict=False)
            first = next((old, new) for old, new in pairs if old != new)
            raise OptionError(
                f"the model differs from that of the checkpoint: it has {first[1] or 'no more variables'} where there"
                f" was {first[0] or 'no more'}. Make and compile it as before,{other}"
            )
        if about["identity"] != self._about["identity"]:
            raise OptionError(
                f"the stream differs from that of the checkpoint: it is {self._about['identity']}, and was"
                f" {about['identity']}. Load the same dataset in the same way,{other}"
            )
        return int(about["replicas"])

    def _restore(self, newest: str, replicas: int) -> None:
        """Of as many replicas as there were, each goes on with what was its own; of others, with that of the first."""
        if replicas == self._about["replicas"]:
            self._checkpoint.restore(newest).assert_consumed()
            return
        saved = self._checkpoint
        first = {name: [parts[:1] for parts in getattr(saved, name)] for name in ("state", "metrics")}
        some = tf.train.Checkpoint(epoch=saved.epoch, step=saved.step, shared=saved.shared, **first)
        some.restore(newest).expect_partial().assert_existing_objects_matched()
        saved.save_counter.assign(int(newest.rpartition("-")[2]))  # the next is written beside this one
        for parts in saved.state:
            for part in parts[1:]:
                part.assign(parts[0].read_value())
        for parts in saved.metrics:
            for part in parts[1:]:
                part.assign(tf.zeros_like(part))

    def _save(self, epoch: int, step: int) -> None:
        self._epoch.assign(epoch)
        self._step.assign(step)
        self._manager.save()


def _parts(variables: Sequence[Any]) -> list[list[Any]]:
    """The variables of TensorFlow behind those of Keras: that of each replica."""
    distributed = tf.distribute.DistributedValues
    values = [variable.value for variable in variables]
    return [list(value.values) if isinstance(value, distributed) else [value] for value in values]


def _described(variables: Sequence[Any]) -> list[str]:
    """Name, shape and dtype of each, without the numbers that Keras appends to names taken before."""
    return [f"{re.sub('_[0-9]+(?![^/_])', '', v.path)} {tuple(v.shape)} {v.dtype}" for v in variables]
