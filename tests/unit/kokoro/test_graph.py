"""Operators that are written as others mean the same: a transform as filters, a convolution over an image one sample high."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from kokoro_backend.graph import GraphError, in_two_dimensions, without_stft
from kokoro_backend.voices import FloatArray

SAMPLES = np.random.default_rng(5).standard_normal((1, 1, 400)).astype(np.float32)


def model_of(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], output: str) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("samples", TensorProto.FLOAT, [1, 1, "time"])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    made = helper.make_graph(nodes, "test", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(model: onnx.ModelProto) -> FloatArray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"samples": SAMPLES})[0])


def stft_model(*constants: onnx.TensorProto) -> onnx.ModelProto:
    window = np.hanning(21)[:20].astype(np.float32)
    tensors = [
        numpy_helper.from_array(np.array(5), "step"),
        numpy_helper.from_array(window, "window"),
        numpy_helper.from_array(np.array(20), "length"),
        numpy_helper.from_array(np.array([1, -1, 1]), "shape"),
    ]
    nodes = [
        helper.make_node("Reshape", ["samples", "shape"], ["signal"]),
        helper.make_node("STFT", ["signal", "step", "window", "length"], ["spectrum"], "stft", onesided=1),
    ]
    return model_of(nodes, tensors, "spectrum")


def test_a_transform_as_filters_gives_the_same_spectrum() -> None:
    model = stft_model()
    rewritten = without_stft(model)
    assert [node.op_type for node in rewritten.graph.node] == ["Reshape", "Reshape", "Conv", "Reshape", "Transpose"]
    assert run(rewritten).shape == (1, 77, 11, 2)
    assert np.abs(run(rewritten) - run(model)).max() < 1e-4


def test_the_real_bins_have_an_imaginary_part_above_zero_so_that_their_phase_is_plus_pi() -> None:
    spectrum = run(without_stft(stft_model()))
    assert (spectrum[0, :, [0, 10], 1] > 0).all()
    assert spectrum[0, :, [0, 10], 1].max() < 1e-12


def test_a_transform_whose_window_is_computed_is_not_rewritten() -> None:
    model = stft_model()
    constants = [tensor for tensor in model.graph.initializer if tensor.name != "window"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    with pytest.raises(GraphError):
        without_stft(model)


@pytest.mark.parametrize(
    "attributes",
    [{"pads": [3, 3], "dilations": [3]}, {"strides": [2], "pads": [0, 1]}, {}],
    ids=["dilated", "strided and padded on one side", "plain"],
)
def test_a_convolution_over_an_image_one_sample_high_is_the_same(attributes: dict[str, list[int]]) -> None:
    weight = np.random.default_rng(6).standard_normal((4, 1, 3)).astype(np.float32)
    bias = np.arange(4, dtype=np.float32)
    constants = [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")]
    model = model_of([helper.make_node("Conv", ["samples", "weight", "bias"], ["made"], "conv", **attributes)], constants, "made")
    rewritten = in_two_dimensions(model)
    assert [node.op_type for node in rewritten.graph.node] == ["Unsqueeze", "Conv", "Squeeze"]
    assert np.abs(run(rewritten) - run(model)).max() < 1e-5
