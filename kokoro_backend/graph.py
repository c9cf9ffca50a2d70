"""Take Kokoro's ONNX graph apart: a front (text to acoustic features) and a back (features to sound), int8 or fp32.

The split lets the back run over windows of a few hundred milliseconds, so that sound leaves before the whole sentence is
computed, and makes the duration of each token visible. The de-quantised graph keeps the rounded weights but computes in
fp32, which is faster on CPUs without int8 instructions. Two operators that ONNX Runtime computes slowly are written as
others that mean the same (docs/adr/0085). Pure graph surgery: no inference here; see `onnx_engine`.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.utils import Extractor

DURATIONS = "/encoder/Clip_output_0"
"""Frames of 25 ms of each token, pads included."""
_FIRST_UPSAMPLING = "/decoder/decoder/generator/ups.0/"
_FIRST_NOISE_CONV = "/decoder/decoder/generator/noise_convs.0/"
_STYLE_LAYER = "/decoder/decoder/generator/resblocks.0/adain1.0/fc"
_HEIGHT = "/image_height_axis"
_BEFORE_QUANTISING = ("DynamicQuantizeLinear", "Unsqueeze", "Cast")


class GraphError(Exception):
    """The graph is not the export that this module knows; the message says which part is missing."""


@dataclass(frozen=True)
class Cut:
    """The tensors between front and back: features (1, 512, frames), source (1, 22, 60 * frames + 1), style (1, 128)."""

    features: str
    source: str
    style: str


class _Index:
    """A graph's nodes by what they make and use, and its constants by name."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.makers: dict[str, NodeProto] = {output: node for node in self.nodes for output in node.output if output}
        self.users: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def array(self, name: str) -> npt.NDArray[np.generic]:
        array: npt.NDArray[np.generic] = numpy_helper.to_array(self.constants[name])
        return array

    def only_user(self, name: str) -> NodeProto:
        users = self.users.get(name, [])
        if len(users) != 1:
            raise GraphError(f"{name} is used {len(users)} times, not once")
        (user,) = users
        return user

    def named(self, prefix: str, *operators: str) -> NodeProto:
        for node in self.nodes:
            if node.name.startswith(prefix) and node.op_type in operators:
                return node
        raise GraphError(f"there is no {' or '.join(operators)} under {prefix}")


def find_cut(model: ModelProto) -> Cut:
    """Return where to cut between acoustic features and vocoder. Raises GraphError for another export."""
    index = _Index(model)
    features = index.named(_FIRST_UPSAMPLING, "ConvTranspose").input[0]
    if index.makers[features].op_type == "LeakyRelu":
        features = index.makers[features].input[0]
    source = index.named(_FIRST_NOISE_CONV, "Conv", "ConvInteger").input[0]
    while index.makers[source].op_type in _BEFORE_QUANTISING:
        source = index.makers[source].input[0]
    style = index.named(_STYLE_LAYER, "MatMul", "MatMulInteger", "Gemm").input[0]
    if index.makers[style].op_type == "DynamicQuantizeLinear":
        style = index.makers[style].input[0]
    return Cut(features, source, style)


def split(model: ModelProto) -> tuple[ModelProto, ModelProto]:
    """Return (front, back). front: tokens, style, speed -> features, source, style, durations. back: the first three -> audio.

    Raises GraphError for another export.
    """
    cut = find_cut(model)
    audio = model.graph.output[0].name
    if DURATIONS not in {output for node in model.graph.node for output in node.output}:
        raise GraphError(f"there is no tensor {DURATIONS}")
    work = ModelProto()
    work.CopyFrom(model)
    ranks = {cut.features: 3, cut.source: 3, cut.style: 2, DURATIONS: 2}
    del work.graph.value_info[:]
    for name, rank in ranks.items():
        sizes = [f"{name}_{axis}" for axis in range(rank)]
        work.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))
    extractor = Extractor(work)
    between = [cut.features, cut.source, cut.style]
    front = extractor.extract_model([value.name for value in model.graph.input], [*between, DURATIONS])
    back = extractor.extract_model(between, [audio])
    return front, back


def dequantised(model: ModelProto) -> ModelProto:
    """Return the same graph computing in fp32: each dynamically quantised operator becomes its float form.

    Raises GraphError if a quantised operator stands in surroundings that are not known.
    """
    index = _Index(model)
    replaced: dict[int, NodeProto] = {}
    dropped: set[int] = set()
    made: dict[str, npt.NDArray[np.float32]] = {}
    for node in index.nodes:
        if node.op_type in ("ConvInteger", "MatMulInteger"):
            last = _float_product(index, node, dropped, made)
            replaced[id(last[0])] = last[1]
        elif node.op_type == "DynamicQuantizeLSTM":
            replaced[id(node)] = _float_lstm(index, node, made)
    nodes = [replaced.get(id(node), node) for node in index.nodes if id(node) in replaced or id(node) not in dropped]
    return _pruned(model, nodes, made)


def _float_product(
    index: _Index, node: NodeProto, dropped: set[int], made: dict[str, npt.NDArray[np.float32]]
) -> tuple[NodeProto, NodeProto]:
    """Return (the last node of the quantised group, what replaces the group): a Conv or MatMul in float.

    The group is: DynamicQuantizeLinear -> this node [-> Add of a quantised bias] -> Cast -> Mul by both scales.
    """
    quantiser = _maker(index, node.input[0], "DynamicQuantizeLinear")
    dropped.add(id(node))
    after = index.only_user(node.output[0])
    bias: list[str] = []
    if after.op_type == "Add":
        dropped.add(id(after))
        other = next(name for name in after.input if name != node.output[0])
        bias = [_float_bias(index, other)]
        after = index.only_user(after.output[0])
    if after.op_type != "Cast":
        raise GraphError(f"{node.name} is followed by {after.op_type}, not by Cast")
    dropped.add(id(after))
    last = index.only_user(after.output[0])
    scales = next(name for name in last.input if name != after.output[0])
    if last.op_type != "Mul":
        raise GraphError(f"{node.name} ends in {last.op_type}, not in Mul")
    weight = node.input[1]
    if weight in index.constants:
        scale_name = next(name for name in _maker(index, scales, "Mul").input if name != quantiser.output[1])
        name = f"{weight}_float"
        axis = 0 if node.op_type == "ConvInteger" else index.array(weight).ndim - 1
        zero = index.array(node.input[3]) if len(node.input) > 3 and node.input[3] else np.zeros((), np.int32)
        made[name] = _scaled(index.array(weight), index.array(scale_name), zero, axis)
    else:
        # Both sides are activations (attention): their unquantised forms are at hand.
        name = _maker(index, weight, "DynamicQuantizeLinear").input[0]
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "ConvInteger":
        return last, helper.make_node("Conv", [quantiser.input[0], name, *bias], [last.output[0]], node.name, **attributes)
    if bias:
        raise GraphError(f"{node.name} has a bias")
    return last, helper.make_node("MatMul", [quantiser.input[0], name], [last.output[0]], node.name)


def _maker(index: _Index, name: str, operator: str) -> NodeProto:
    node = index.makers.get(name)
    if node is None or node.op_type != operator:
        raise GraphError(f"{name} is not made by {operator}")
    return node


def _float_bias(index: _Index, name: str) -> str:
    """Return the float constant that a quantised bias was computed from."""
    node = index.makers[name]
    while node.op_type in ("Reshape", "Cast", "Floor"):
        node = index.makers[node.input[0]]
    if node.op_type != "Div" or node.input[0] not in index.constants:
        raise GraphError(f"the bias {name} is not a scaled constant")
    return str(node.input[0])


def _scaled(
    values: npt.NDArray[np.generic], scale: npt.NDArray[np.generic], zero: npt.NDArray[np.generic], axis: int
) -> npt.NDArray[np.float32]:
    shape = [-1 if index == axis else 1 for index in range(values.ndim)]

    def spread(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        flat = array.astype(np.float32)
        return flat.reshape(shape) if flat.size > 1 else flat.reshape(())

    return ((values.astype(np.float32) - spread(zero)) * spread(scale)).astype(np.float32)


def _float_lstm(index: _Index, node: NodeProto, made: dict[str, npt.NDArray[np.float32]]) -> NodeProto:
    data, weights, recurrence, bias, lengths, hidden, cell, peephole, w_scale, w_zero, r_scale, r_zero = node.input
    names = []
    for name, scale, zero in ((weights, w_scale, w_zero), (recurrence, r_scale, r_zero)):
        # Stored (directions, inputs, 4 * hidden), with a scale for each output; LSTM wants the last two swapped.
        values = index.array(name).astype(np.float32)
        shape = (values.shape[0], 1, -1)
        values = (values - index.array(zero).astype(np.float32).reshape(shape)) * index.array(scale).astype(np.float32).reshape(
            shape
        )
        made[f"{name}_float"] = np.ascontiguousarray(values.transpose(0, 2, 1), dtype=np.float32)
        names.append(f"{name}_float")
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    inputs = [data, *names, bias, lengths, hidden, cell, peephole]
    return helper.make_node("LSTM", inputs, list(node.output), node.name, **attributes)


def _pruned(model: ModelProto, nodes: list[NodeProto], made: Mapping[str, npt.NDArray[np.generic]]) -> ModelProto:
    """Return a model of `nodes` without what no output needs any more."""
    needed = {output.name for output in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if any(output in needed for output in node.output):
            kept.append(node)
            needed.update(name for name in node.input if name)
    constants = [tensor for tensor in model.graph.initializer if tensor.name in needed and tensor.name not in made]
    constants += [numpy_helper.from_array(array, name) for name, array in made.items() if name in needed]
    graph = helper.make_graph(kept[::-1], model.graph.name, model.graph.input, model.graph.output, constants)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def without_stft(model: ModelProto) -> ModelProto:
    """Return the same graph with each STFT of constant window as one convolution: a filter for each bin's two parts.

    ONNX Runtime's own STFT takes a quarter of the front's time for a transform of 20 samples. Raises GraphError if a
    transform is of another kind.
    """
    index = _Index(model)
    nodes: list[NodeProto] = []
    made: dict[str, npt.NDArray[np.generic]] = {}
    for node in index.nodes:
        if node.op_type != "STFT":
            nodes.append(node)
            continue
        signal, step, window, length = node.input
        if not {step, window, length} <= set(index.constants):
            raise GraphError(f"{node.name} has a window that is not constant")
        bins = int(index.array(length)) // 2 + 1
        names = {part: f"{node.name}/{part}" for part in ("filters", "bias", "row", "parts", "signal", "filtered", "spectrum")}
        made[names["filters"]], made[names["bias"]] = _transform_filters(index.array(window), int(index.array(length)))
        made[names["row"]] = np.array([1, 1, -1], np.int64)
        made[names["parts"]] = np.array([1, bins, 2, -1], np.int64)
        nodes += [
            helper.make_node("Reshape", [signal, names["row"]], [names["signal"]], f"{node.name}/row_of_samples"),
            helper.make_node(
                "Conv",
                [names["signal"], names["filters"], names["bias"]],
                [names["filtered"]],
                f"{node.name}/convolution",
                strides=[int(index.array(step))],
            ),
            helper.make_node("Reshape", [names["filtered"], names["parts"]], [names["spectrum"]], f"{node.name}/bins"),
            helper.make_node("Transpose", [names["spectrum"]], list(node.output), f"{node.name}/by_frame", perm=[0, 3, 1, 2]),
        ]
    return _pruned(model, nodes, made)


def _transform_filters(window: npt.NDArray[np.generic], length: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return (filters, bias) of a one-sided discrete Fourier transform: real and imaginary part of each bin in turn."""
    angles = 2 * np.pi * np.arange(length // 2 + 1)[:, None] * np.arange(length)[None, :] / length
    parts = np.stack([np.cos(angles), -np.sin(angles)], axis=1)
    parts[[0, -1], 1] = 0  # The lowest and the highest bin are real.
    filters = (parts * window.astype(np.float64)).reshape(-1, 1, length).astype(np.float32)
    # The graph takes the phase by an arctangent of its own, which gives a negative real number -pi if its imaginary part is
    # exactly zero; the model was trained with +pi. Too small to change anything else.
    bias = np.zeros(len(filters), np.float32)
    bias[[1, -1]] = 1e-20
    return filters, bias


def in_two_dimensions(model: ModelProto) -> ModelProto:
    """Return the same graph with its convolutions over an image one sample high.

    ONNX Runtime has blocked kernels for those only; over one dimension it copies every window of samples first.
    """
    index = _Index(model)
    nodes: list[NodeProto] = []
    made: dict[str, npt.NDArray[np.generic]] = {_HEIGHT: np.array([2], np.int64)}
    for node in index.nodes:
        weight = index.constants.get(node.input[1]) if node.op_type == "Conv" else None
        if weight is None or len(weight.dims) != 3:
            nodes.append(node)
            continue
        flat = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        before, after = flat.get("pads", [0, 0])
        name = f"{node.input[1]}_image"
        made[name] = numpy_helper.to_array(weight)[:, :, None, :]
        image = helper.make_node(
            "Conv",
            [f"{node.name}/image", name, *node.input[2:]],
            [f"{node.name}/convolved"],
            node.name,
            group=flat.get("group", 1),
            kernel_shape=[1, weight.dims[2]],
            strides=[1, *flat.get("strides", [1])],
            dilations=[1, *flat.get("dilations", [1])],
            pads=[0, before, 0, after],
        )
        nodes += [
            helper.make_node("Unsqueeze", [node.input[0], _HEIGHT], [f"{node.name}/image"], f"{node.name}/to_image"),
            image,
            helper.make_node("Squeeze", [f"{node.name}/convolved", _HEIGHT], list(node.output), f"{node.name}/to_row"),
        ]
    return _pruned(model, nodes, made)


def write_parts(model_path: Path, folder: Path, *, as_float: bool, replace: Callable[[Path, Path], object]) -> None:
    """Write front.onnx and back.onnx of the model into `folder`, each through a temporary file and `replace`.

    Raises GraphError or OSError.
    """
    model = onnx.load(model_path)
    if as_float:
        model = dequantised(model)
    for half, name in zip(split(model), ("front", "back"), strict=True):
        part = in_two_dimensions(without_stft(half)) if as_float else without_stft(half)
        # A name of its own and a rename: two processes may start at once.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}-", suffix=".onnx", delete=False) as file:
            partial = Path(file.name)
        try:
            onnx.save(part, partial)
            partial.chmod(0o644)
            replace(partial, folder / f"{name}.onnx")
        finally:
            partial.unlink(missing_ok=True)
