"""What `targets` makes of a batch, and that Keras trains with each kind of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import BuildHere, SaveEpisodes
from reader import load
from shards import OptionError

LENGTH, SHIFT = 6, 4
STEPS = [26, 9, 17, 30, 13, 21]  # all but one leave steps after the last full window
SPEAKERS = ["ann", "bob", "cid", "bob", "ann", "cid"]
REWARDS = [0.5, -1.25, 3.0, 0.0, 2.5, 8.0]
FEATURES = {"action", "gain", "observation", "reward", "speaker"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Archives with two arrays along time and one value, and a labels file with two columns."""
    root = tmp_path_factory.mktemp("inputs")
    (root / "in").mkdir()
    random = np.random.default_rng(1)
    for i, steps in enumerate(STEPS):
        arrays = {
            "observation": random.standard_normal((steps, 3)).astype(np.float32) + 2,
            "action": random.integers(0, 4, steps).astype(np.int32),
            "gain": np.float32(i + 1),
        }
        np.savez(root / "in" / f"e{i}.npz", **arrays)
    rows = [f"e{i}.npz,{speaker},{reward}" for i, (speaker, reward) in enumerate(zip(SPEAKERS, REWARDS, strict=True))]
    (root / "labels.csv").write_text("\n".join(["path,speaker,reward", *rows]) + "\n")
    return str(root / "in"), str(root / "labels.csv")


def build_both(build_here: BuildHere, inputs: tuple[str, str], root: Path, **options: Any) -> dict[str, Path]:
    for tail in ("drop", "pad"):
        build_here(
            inputs[0],
            root / tail,
            labels=inputs[1],
            window_length=LENGTH,
            shift=SHIFT,
            tail=tail,
            num_shards=2,
            **options,
        )
    return {tail: root / tail for tail in ("drop", "pad")}


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, build_here: BuildHere, inputs: tuple[str, str]
) -> dict[str, Path]:
    """Every feature, in windows that are full ("drop") or may be padded ("pad")."""
    return build_both(build_here, inputs, tmp_path_factory.mktemp("all"))


@pytest.fixture(scope="module")
def lone(
    tmp_path_factory: pytest.TempPathFactory, build_here: BuildHere, save_episodes: SaveEpisodes
) -> dict[str, Path]:
    """One feature alone."""
    root = tmp_path_factory.mktemp("lone")
    random = np.random.default_rng(2)
    arrays = [random.standard_normal((steps, 3)).astype(np.float32) for steps in STEPS]
    inputs = save_episodes(root / "in", arrays)
    for tail in ("drop", "pad"):
        build_here(inputs, root / tail, window_length=LENGTH, shift=SHIFT, tail=tail)
    return {tail: root / tail for tail in ("drop", "pad")}


@pytest.fixture(scope="module")
def labelled(
    tmp_path_factory: pytest.TempPathFactory,
    build_here: BuildHere,
    inputs: tuple[str, str],
) -> dict[str, Path]:
    """One feature along time, two labels of which one is left out."""
    root = tmp_path_factory.mktemp("labelled")
    lines = Path(inputs[1]).read_text().splitlines()
    (root / "labels.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    return build_both(build_here, (inputs[0], str(root / "labels.csv")), root, features=("observation",))


def first(folder: Path, **options: Any) -> Any:
    return next(load(folder, batch_size=9, seed=3, **options).as_numpy_iterator())


def same(found: Any, expected: Any) -> None:
    """Equal values, dtypes and structure."""
    tf.nest.assert_same_structure(found, expected)
    for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


def same_weights(weights: Any, y: Any, mask: np.ndarray) -> None:
    """Weights, one for all of y or one for each, are those of the mask, but for axes of one."""
    each = tf.nest.flatten(weights)
    assert len(each) in {1, len(tf.nest.flatten(y))}
    for weight in each:
        assert weight.dtype == np.float32
        assert weight.shape[:2] == mask.shape
        assert np.array_equal(weight.reshape(mask.shape), mask)


def literal(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, targets: Any, tail: str = "pad") -> Any:
    """The only batch of an episode 1, 2, 3, 4, 5 in windows of 4 with shift 2, in order."""
    inputs = save_episodes(tmp_path / "in", [np.arange(1, 6, dtype=np.float32)[:, np.newaxis]])
    build_here(inputs, tmp_path / "out", window_length=4, shift=2, tail=tail)
    dataset = load(tmp_path / "out", batch_size=8, shuffle=False, targets=targets)
    (batch,) = dataset.as_numpy_iterator()
    return [array[..., 0].tolist() if array.ndim == 3 else array.tolist() for array in batch]


def test_same_of_padded_windows_in_numbers(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    x, y, weights = literal(tmp_path, save_episodes, build_here, "same")
    assert x == [[1, 2, 3, 4], [3, 4, 5, 0]]
    assert y == [[1, 2, 3, 4], [3, 4, 5, 0]]
    assert weights == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_steps_of_padded_windows_in_numbers(tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere) -> None:
    x, y, weights = literal(tmp_path, save_episodes, build_here, 2)
    assert x == [[1, 2], [3, 4]]
    assert y == [[3, 4], [5, 0]]
    assert weights == [[1, 1], [1, 0]]


def test_steps_of_aligned_windows_in_numbers(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    x, y = literal(tmp_path, save_episodes, build_here, np.int64(1), tail="align")
    assert x == [[1, 2, 3], [2, 3, 4]]
    assert y == [[4], [5]]


def test_a_label_is_y(folders: dict[str, Path]) -> None:
    whole = first(folders["drop"])
    assert set(whole) == FEATURES
    x, y = first(folders["drop"], targets="speaker")
    same(y, whole.pop("speaker"))
    same(x, whole)


def test_a_value_of_an_archive_is_y(folders: dict[str, Path]) -> None:
    whole = first(folders["pad"])
    del whole["valid"]
    x, y = first(folders["pad"], targets="gain")
    same(y, whole.pop("gain"))
    same(x, whole)


def test_a_label_of_padded_windows_leaves_the_mask_in_x(folders: dict[str, Path]) -> None:
    whole = first(folders["pad"])
    assert set(whole) == FEATURES | {"mask", "valid"}
    del whole["valid"]
    x, y = first(folders["pad"], targets="speaker")
    same(y, whole.pop("speaker"))
    same(x, whole)


def test_labels_are_those_of_the_episode(folders: dict[str, Path]) -> None:
    for tail in ("drop", "pad"):
        seen = set()
        for batch in load(folders[tail], batch_size=4, provenance=True).as_numpy_iterator():
            rows = zip(batch["episode"].tolist(), batch["speaker"].tolist(), strict=True)
            for (episode, speaker), reward, gain in zip(
                rows, batch["reward"].tolist(), batch["gain"].tolist(), strict=True
            ):
                assert ["ann", "bob", "cid"][speaker] == SPEAKERS[episode]
                assert (reward, gain) == (REWARDS[episode], episode + 1)
                seen.add(episode)
        assert seen == set(range(len(STEPS)))


def test_x_is_bare_where_one_feature_is_left(labelled: dict[str, Path]) -> None:
    whole = first(labelled["drop"])
    same(first(labelled["drop"], targets="speaker"), (whole["observation"], whole["speaker"]))
    same(first(labelled["drop"], targets="observation"), (whole["speaker"], whole["observation"]))


def test_x_has_feature_and_mask_where_one_feature_is_left_of_padded_windows(labelled: dict[str, Path]) -> None:
    whole = first(labelled["pad"])
    x, y = first(labelled["pad"], targets="speaker")
    same(x, {"observation": whole["observation"], "mask": whole["mask"]})
    same(y, whole["speaker"])


def test_a_feature_along_time_is_y(folders: dict[str, Path]) -> None:
    whole = first(folders["drop"])
    x, y = first(folders["drop"], targets="action")
    same(y, whole.pop("action"))
    same(x, whole)


def test_a_feature_along_time_of_padded_windows_has_weights(folders: dict[str, Path]) -> None:
    whole = first(folders["pad"])
    mask = whole.pop("mask")
    assert whole.pop("valid").tolist() == mask.sum(1).tolist()
    x, y, weights = first(folders["pad"], targets="action")
    same(y, whole.pop("action"))
    same(x, whole)
    same_weights(weights, y, mask)


def test_same_gives_every_feature_twice(folders: dict[str, Path]) -> None:
    whole = first(folders["drop"])
    same(first(folders["drop"], targets="same"), (whole, whole))


def test_same_of_a_lone_feature_is_bare(lone: dict[str, Path]) -> None:
    whole = first(lone["drop"])["window"]
    same(first(lone["drop"], targets="same"), (whole, whole))
    padded = first(lone["pad"])
    x, y, weights = first(lone["pad"], targets="same")
    same((x, y), (padded["window"], padded["window"]))
    same_weights(weights, y, padded["mask"])


@pytest.mark.parametrize("steps", [1, 2, LENGTH - 1])
def test_steps_are_taken_of_features_along_time_alone(folders: dict[str, Path], steps: int) -> None:
    whole = first(folders["drop"])
    x, y = first(folders["drop"], targets=steps)
    time = {"observation", "action"}
    same(x, {name: values[:, :-steps] if name in time else values for name, values in whole.items()})
    same(y, {name: whole[name][:, -steps:] for name in time})
    assert y["observation"].shape == (9, steps, 3)


def test_steps_of_one_feature_along_time_are_a_bare_y(labelled: dict[str, Path]) -> None:
    whole = first(labelled["drop"])
    x, y = first(labelled["drop"], targets=2)
    same(x, {"observation": whole["observation"][:, :-2], "speaker": whole["speaker"]})
    same(y, whole["observation"][:, -2:])


@pytest.mark.parametrize("steps", [1, 4])
def test_steps_of_a_lone_padded_feature_have_weights_for_them_alone(lone: dict[str, Path], steps: int) -> None:
    whole = first(lone["pad"])
    window, mask = whole["window"], whole["mask"]
    x, y, weights = first(lone["pad"], targets=steps)
    same((x, y), (window[:, :-steps], window[:, -steps:]))
    same_weights(weights, y, mask[:, -steps:])


def test_steps_of_several_padded_features_have_weights(folders: dict[str, Path]) -> None:
    whole = first(folders["pad"])
    _, y, weights = first(folders["pad"], targets=2)
    same(y, {name: whole[name][:, -2:] for name in ("action", "observation")})
    same_weights(weights, y, whole["mask"][:, -2:])


def test_a_function_gets_all_there_is(folders: dict[str, Path]) -> None:
    names = []

    def pick(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        names.append(set(batch))
        return batch["observation"], tf.cast(batch["start"], tf.float32) * batch["gain"]

    plain = first(folders["pad"], provenance=True)
    same(
        first(folders["pad"], provenance=True, targets=pick),
        (plain["observation"], plain["start"].astype(np.float32) * plain["gain"]),
    )
    assert set.union(*names) == FEATURES | {"mask", "valid", "episode", "start"}


def test_targets_come_after_map_fn(labelled: dict[str, Path]) -> None:
    def rename(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"observation": batch["observation"] * 2, "speaker": batch["speaker"] + 1}

    whole = first(labelled["drop"])
    x, y = first(labelled["drop"], targets="speaker", map_fn=rename)
    same(x, whole["observation"] * 2)
    same(y, whole["speaker"] + 1)


@pytest.mark.parametrize("targets", ["speaker", "gain", "action", "same", 2])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_the_element_spec_says_what_comes(folders: dict[str, Path], targets: Any, tail: str) -> None:
    for drop in (False, True):
        dataset = load(folders[tail], batch_size=8, targets=targets, remainder="drop" if drop else "keep")
        spec = dataset.element_spec
        assert {part.shape[0] for part in tf.nest.flatten(spec)} == {8 if drop else None}
        for element in dataset:
            tf.nest.assert_same_structure(element, spec)
            for part, tensor in zip(tf.nest.flatten(spec), tf.nest.flatten(element), strict=True):
                assert part.shape.is_compatible_with(tensor.shape)
                assert part.shape[1:].is_fully_defined()
                assert part.dtype == tensor.dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": "nobody"}, r"targets='nobody' is neither \"same\" nor a feature: action, .*observation.*speaker"),
        ({"targets": "mask"}, "targets='mask' is neither"),
        ({"targets": "start"}, "targets='start' is neither"),
        ({"targets": LENGTH}, "targets=6 must leave a step to x: windows have 6 steps"),
        ({"targets": 100}, "targets=100 must leave a step"),
        ({"targets": 0}, "targets=0 must leave"),
        ({"targets": -1}, "targets=-1 must leave"),
        ({"targets": False}, "not False"),
        ({"targets": 1.0}, 'targets must be None, "same", a feature, a number of steps or a function, not 1.0'),
        ({"targets": ["speaker"]}, r"not \['speaker'\]"),
        ({"targets": "speaker", "provenance": True}, "provenance=True has no place"),
        ({"targets": 2, "provenance": True}, "provenance=True has no place"),
    ],
)
def test_wrong_targets_are_refused(folders: dict[str, Path], options: dict[str, Any], message: str) -> None:
    for folder in folders.values():
        with pytest.raises(OptionError, match=message):
            load(folder, batch_size=4, **options)


def test_the_only_feature_leaves_nothing_for_x(lone: dict[str, Path]) -> None:
    for folder in lone.values():
        with pytest.raises(OptionError, match="targets='window' leaves nothing for x: it is the only feature"):
            load(folder, batch_size=4, targets="window")


def test_windows_of_one_step_have_none_to_split_off(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.arange(4.0)]), tmp_path / "out", window_length=1)
    with pytest.raises(OptionError, match="targets=1 must leave a step to x: windows have 1 steps"):
        load(tmp_path / "out", batch_size=4, targets=1)


def inputs_of(spec: Any) -> Any:
    """A Keras input for each tensor of x, in the structure of x."""
    if not isinstance(spec, dict):
        return keras.Input(spec.shape[1:], dtype=spec.dtype.name)
    return {name: keras.Input(part.shape[1:], dtype=part.dtype.name, name=name) for name, part in spec.items()}


def flat(inputs: Any) -> Any:
    """All inputs as one vector a window."""
    parts = [
        keras.layers.Reshape((-1,))(keras.layers.Lambda(lambda x: keras.ops.cast(x, "float32"))(part))
        for part in (inputs.values() if isinstance(inputs, dict) else [inputs])
    ]
    return parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)


def fit(dataset: tf.data.Dataset, outputs: Callable[[Any], Any], loss: Any, **how: Any) -> tuple[Any, list[float]]:
    """A model of x as it comes, trained for two epochs, and its losses."""
    keras.utils.set_random_seed(3)
    inputs = inputs_of(dataset.element_spec[0])
    model = keras.Model(inputs, outputs(flat(inputs)))
    model.compile(optimizer="sgd", loss=loss, **how)
    losses = model.fit(dataset, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[0] != losses[1]
    return model, losses


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("dataset", ["folders", "labelled"])
def test_keras_learns_a_label(request: pytest.FixtureRequest, dataset: str, tail: str) -> None:
    folder = request.getfixturevalue(dataset)[tail]
    stream = load(folder, batch_size=8, targets="speaker", normalize=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    fit(stream, lambda x: keras.layers.Dense(3)(x), loss, metrics=["accuracy"])


def test_keras_learns_a_number_of_the_episode(folders: dict[str, Path]) -> None:
    fit(load(folders["pad"], batch_size=8, targets="reward", normalize=True), keras.layers.Dense(1), "mse")


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_keras_learns_an_action_a_step(folders: dict[str, Path], tail: str) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def outputs(x: Any) -> Any:
        return keras.layers.Reshape((LENGTH, 4))(keras.layers.Dense(4 * LENGTH)(x))

    fit(load(folders[tail], batch_size=8, targets="action", normalize=True), outputs, loss)


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("targets", ["same", 2])
def test_keras_learns_a_lone_feature(lone: dict[str, Path], targets: Any, tail: str) -> None:
    steps = LENGTH if targets == "same" else targets

    def outputs(x: Any) -> Any:
        return keras.layers.Reshape((steps, 3))(keras.layers.Dense(3 * steps)(x))

    fit(load(lone[tail], batch_size=8, targets=targets), outputs, "mse")


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_keras_learns_steps_of_several_features(folders: dict[str, Path], tail: str) -> None:
    def outputs(x: Any) -> Any:
        return {
            "observation": keras.layers.Reshape((2, 3))(keras.layers.Dense(6)(x)),
            "action": keras.layers.Reshape((2, 4))(keras.layers.Dense(8)(x)),
        }

    loss = {"observation": "mse", "action": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    fit(load(folders[tail], batch_size=8, targets=2, normalize=True), outputs, loss)


@pytest.mark.parametrize(
    "tail",
    [
        "drop",
        "pad",
    ],
)
def test_keras_learns_x_and_labels_themselves(labelled: dict[str, Path], tail: str) -> None:
    def outputs(x: Any) -> Any:
        return {
            "observation": keras.layers.Reshape((LENGTH, 3))(keras.layers.Dense(3 * LENGTH)(x)),
            "speaker": keras.layers.Dense(3)(x),
        }

    loss = {"observation": "mse", "speaker": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    fit(load(labelled[tail], batch_size=8, targets="same"), outputs, loss)


def test_the_loss_of_several_features_is_that_of_real_steps(folders: dict[str, Path]) -> None:
    dataset = load(folders["pad"], batch_size=1000, targets=3, shuffle=False)
    inputs = inputs_of(dataset.element_spec[0])
    x = flat(inputs)
    outputs = {
        "observation": keras.layers.Reshape((3, 3))(keras.layers.Dense(9)(x)),
        "action": keras.layers.Reshape((3, 4))(keras.layers.Dense(12)(x)),
    }
    model = keras.Model(inputs, outputs)
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile(loss={"observation": keras.losses.MeanSquaredError(reduction="sum"), "action": classes})
    (whole,) = load(folders["pad"], batch_size=1000, shuffle=False).as_numpy_iterator()
    ((x, _, _),) = dataset
    found, real = model(x), whole["mask"][:, -3:]
    logits = found["action"].numpy().astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -np.log(np.take_along_axis(shares, whole["action"][:, -3:, np.newaxis], -1)[..., 0])
    errors = ((found["observation"].numpy().astype(np.float64) - whole["observation"][:, -3:]) ** 2).mean(-1)
    expected = errors[real].sum() + entropy[real].sum()
    assert model.evaluate(dataset, verbose=0, return_dict=True)["loss"] == pytest.approx(expected, rel=1e-4)


def test_keras_learns_from_a_function(folders: dict[str, Path]) -> None:
    def pick(batch: dict[str, tf.Tensor]) -> Any:
        return batch["observation"], batch["reward"], tf.cast(batch["mask"][:, -1], tf.float32)

    fit(load(folders["pad"], batch_size=8, targets=pick), keras.layers.Dense(1), "mse")


@pytest.mark.parametrize("jit", [False, True])
def test_a_padded_normalized_labelled_dataset_trains_in_a_compiled_function(
    folders: dict[str, Path], jit: bool
) -> None:
    stream = load(folders["pad"], batch_size=8, targets="speaker", normalize=True, remainder="drop")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    fit(stream, keras.layers.Dense(3), loss, jit_compile=jit)

    @tf.function(jit_compile=jit)
    def real_steps(mask: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(mask, tf.int32))

    @tf.function
    def epoch(dataset: tf.data.Dataset) -> tf.Tensor:
        total = tf.constant(0)
        for x, _ in dataset:
            total += real_steps(x["mask"])
        return total

    whole = load(folders["pad"], batch_size=8, targets="speaker", normalize=True)
    covered = sum(min(LENGTH, steps - start) for steps in STEPS for start in _starts(steps))
    assert int(epoch(whole)) == covered


def _starts(steps: int) -> list[int]:
    """The first steps of windows with tail=pad."""
    full = list(range(0, steps - LENGTH + 1, SHIFT))
    following = len(full) * SHIFT
    end = full[-1] + LENGTH if full else 0
    return [*full, following] if end < steps and following < steps else full


@pytest.mark.parametrize(("targets", "steps"), [("same", LENGTH), (2, 2)])
@pytest.mark.parametrize("batch_size", [2, 5, 1000])
def test_the_loss_is_that_of_real_steps(lone: dict[str, Path], targets: Any, steps: int, batch_size: int) -> None:
    dataset = load(lone["pad"], batch_size=batch_size, targets=targets)
    inputs = keras.Input(dataset.element_spec[0].shape[1:])
    model = keras.Model(inputs, keras.layers.Reshape((steps, 3))(keras.layers.Dense(3 * steps)(flat(inputs))))
    total, real = 0.0, []
    for batch in load(lone["pad"], batch_size=7).as_numpy_iterator():
        window = batch["window"]
        x, y = (window, window) if targets == "same" else (window[:, :-steps], window[:, -steps:])
        errors = ((model(x).numpy().astype(np.float64) - y) ** 2).mean(-1)
        real.append(batch["mask"][:, -steps:])
        total += errors[real[-1]].sum()
    elements = np.concatenate(real)
    assert 0 < elements.sum() < elements.size
    sums = keras.losses.MeanSquaredError(reduction="sum")
    assert sum(float(sums(y, model(x), sample_weight=weights)) for x, y, weights in dataset) == pytest.approx(total)
    if batch_size == 1000:
        model.compile(loss="mse", weighted_metrics=["mse"])
        loss, mean = model.evaluate(dataset, verbose=0)
        assert loss == pytest.approx(total / elements.size, rel=1e-5)  # as Keras divides
        assert mean == pytest.approx(total / elements.sum(), rel=1e-5)


@pytest.mark.parametrize("step_shape", [(1,), (3,), (4, 3)])
def test_the_loss_of_steps_of_any_shape_is_that_of_real_steps(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, step_shape: tuple[int, ...]
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.ones((5, *step_shape), np.float32)])
    build_here(inputs, tmp_path / "out", window_length=4, shift=2, tail="pad")
    ((_, y, weights),) = load(tmp_path / "out", batch_size=8, targets="same")
    loss = keras.losses.MeanSquaredError(reduction="sum")(y, y + 2.0, sample_weight=weights)
    assert float(loss) == 7 * np.prod(step_shape[:-1]) * 4  # real steps, rows, squared error


@pytest.mark.parametrize("step_shape", [(), (1,), (2,), (3, 2)])
def test_the_loss_of_classes_of_any_shape_is_that_of_real_steps(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere, step_shape: tuple[int, ...]
) -> None:
    inputs = save_episodes(tmp_path / "in", [np.ones((5, *step_shape), np.int32)])
    build_here(inputs, tmp_path / "out", window_length=4, shift=2, tail="pad")
    ((_, y, weights),) = load(tmp_path / "out", batch_size=8, targets="same")
    logits = tf.zeros((*y.shape, 4))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    expected = 7 * np.prod(step_shape) * np.log(4)
    assert float(loss(y, logits, sample_weight=weights)) == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_classes_is_that_of_real_steps(folders: dict[str, Path]) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    for x, y, weights in load(folders["pad"], batch_size=8, targets="action"):
        logits = np.random.default_rng(0).standard_normal((len(y), LENGTH, 4)).astype(np.float32)
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        each = -np.log(np.take_along_axis(shares, y.numpy()[..., np.newaxis], -1)[..., 0])
        real = weights.numpy() > 0
        assert float(loss(y, logits, sample_weight=weights)) == pytest.approx(each[real].sum(), rel=1e-5)
        assert np.array_equal(x["observation"].numpy().any(-1), real)


def test_padded_numbers_cannot_be_weighed_and_are_refused(
    tmp_path: Path, save_episodes: SaveEpisodes, build_here: BuildHere
) -> None:
    build_here(save_episodes(tmp_path / "in", [np.ones(9, "f4")]), tmp_path / "out", window_length=4, tail="pad")
    for targets in ("same", 2):
        with pytest.raises(
            OptionError, match=r"no Keras loss can leave out: save the episodes with shape \(steps, 1\)"
        ):
            load(tmp_path / "out", batch_size=2, targets=targets)
    x, mask = next(iter(load(tmp_path / "out", batch_size=3, targets=lambda batch: (batch["window"], batch["mask"]))))
    assert sorted(x[~mask].numpy().tolist()) == [0.0] * 3


def test_features_picks_what_is_delivered_in_that_order(folders: dict[str, Path]) -> None:
    whole = first(folders["drop"])
    picked = first(folders["drop"], features=("speaker", "observation"))
    assert list(picked) == ["speaker", "observation"]
    same(picked, {name: whole[name] for name in picked})
    x, y = first(folders["drop"], features=["observation", "speaker"], targets="speaker")
    same((x, y), (whole["observation"], whole["speaker"]))
    x, y = first(folders["drop"], features=["observation"], targets="same")
    same((x, y), (whole["observation"], whole["observation"]))
    with pytest.raises(OptionError, match=r'targets=.speaker. is neither "same" nor a feature: observation'):
        load(folders["drop"], batch_size=2, features=["observation"], targets="speaker")
    for wrong in (["nothing"], [], ["action", "action"], "action"):
        with pytest.raises(OptionError, match="features must be some of action, gain, observation"):
            load(folders["drop"], batch_size=2, features=wrong)
