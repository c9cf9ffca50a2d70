"""Kokoro-82M's parameters for the torch engine, by the names of the authors' checkpoint: from that file, or from the ONNX graph.

The packaged weights exist as an int8 ONNX graph only: its constants, de-quantised, are the parameters up to int8's rounding.
Weight normalisation is folded: it is a way to train, not to speak. Nothing here runs the model; see `torch_model`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kokoro_backend.engine import EngineError
from kokoro_backend.voices import FloatArray

Parameters = dict[str, FloatArray]

_PREDICTORS_OWN = re.compile(r"(F0|N)(\.|_proj)|shared\.")
_SUFFIXES = {"weight", "bias", "gamma", "beta"}
_ALPHA = re.compile(r"\.alpha[12]\.\d$")


def read_parameters(model: Path) -> Parameters:
    """Return the parameters in `model`: a checkpoint (*.pth) or an ONNX graph. Raises EngineError if it is another model's."""
    found = from_checkpoint(model) if model.suffix == ".pth" else from_graph(model)
    if missing := sorted(EXPECTED - found.keys()):
        raise EngineError(f"{model} is no Kokoro-82M: it has no {missing[0]} ({len(missing)} parameters are missing)")
    return {name: found[name] for name in EXPECTED}


def from_checkpoint(path: Path) -> Parameters:
    """Return the parameters of the authors' checkpoint. Only tensors are read from it, never code. Raises EngineError."""
    import pickle

    import torch

    try:
        parts = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {
            f"{part}.{name.removeprefix('module.')}": np.asarray(tensor.float().numpy(), dtype=np.float32)
            for part, state in parts.items()
            for name, tensor in state.items()
        }
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, AttributeError, ValueError) as error:
        raise EngineError(f"{path} is no checkpoint that can be read: {type(error).__name__}") from error
    return dict(_folded(tensors))


def _folded(tensors: Mapping[str, FloatArray]) -> Iterator[tuple[str, FloatArray]]:
    for name, tensor in tensors.items():
        if name.endswith(".weight_v"):
            stem = name.removesuffix("_v")
            length = np.sqrt((tensor.astype(np.float64) ** 2).sum(axis=tuple(range(1, tensor.ndim)), keepdims=True))
            yield stem, (tensor * (tensors[f"{stem}_g"] / np.maximum(length, 1e-12))).astype(np.float32)
        elif not name.endswith(".weight_g"):
            yield name, tensor


def from_graph(path: Path) -> Parameters:
    """Return the parameters in the constants of an ONNX export. Raises EngineError if it is not the export that we know."""
    import onnx

    from kokoro_backend.graph import GraphError, dequantised

    try:
        return _constants_by_module(dequantised(onnx.load(path)))
    except (GraphError, OSError, ValueError, KeyError, IndexError) as error:
        raise EngineError(f"{path} is no graph whose constants are known: {error}") from error


def _constants_by_module(model: Any) -> Parameters:
    """Return the constants of a graph in fp32, an onnx.ModelProto, by the names of the modules that they came from."""
    from onnx import numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found: Parameters = {}
    for name, array in constants.items():
        if array.dtype == np.float32 and (name.rpartition(".")[2] in _SUFFIXES or _ALPHA.search(name)):
            found[_plain(name)] = array
        elif name.endswith(".weight_quantized") and f"{name.removesuffix('_quantized')}_scale" in constants:
            found[_plain(name.removesuffix("_quantized"))] = _embedding(constants, name.removesuffix("_quantized"))
    for node in model.graph.node:
        own = [constants[name] for name in node.input if name in constants]
        path_of = _module(node.name)
        if node.op_type in ("Conv", "ConvTranspose") and node.input[1] in constants:
            found[f"{path_of}.weight"] = constants[node.input[1]]
        elif node.op_type == "MatMul" and node.input[1] in constants:
            found[f"{path_of}.weight"] = np.ascontiguousarray(constants[node.input[1]].T)
        elif node.op_type == "LSTM":
            found.update(_lstm(path_of, own[0], own[1], own[2]))
    return found


def _plain(name: str) -> str:
    """Return a constant's name without the exporter's own wrapping: `encoder.` of the text side, `decoder.` of the other."""
    return name.removeprefix("encoder.") if name.startswith("encoder.") else name.removeprefix("decoder.")


def _module(node: str) -> str:
    """Return the module that a node was exported from: "/encoder/F0.0/conv1/Conv_quant" is "predictor.F0.0.conv1"."""
    parts = node.strip("/").split("/")
    side, steps = parts[0], parts[1:-1]
    modules: list[str] = []
    for step in steps:
        # A container is named once by itself and once with its member: "cnn.0/cnn.0.0".
        if modules and step.startswith(modules[-1] + "."):
            modules[-1] = step
        else:
            modules.append(step)
    # The layers that share their weights are exported one after the other: "query", "query_1", …
    name = re.sub(r"_\d+$", "", ".".join(modules))
    if side == "encoder" and _PREDICTORS_OWN.match(name + "."):
        return f"predictor.{name}"
    return name


def _embedding(constants: Mapping[str, npt.NDArray[np.generic]], name: str) -> FloatArray:
    # Equal constants were merged by the exporter: the tables share the zero point of the first one.
    zero = constants.get(f"{name}_zero_point", constants["encoder.bert.embeddings.word_embeddings.weight_zero_point"])
    table = constants[f"{name}_quantized"].astype(np.float32) - zero.astype(np.float32)
    return (table * constants[f"{name}_scale"].astype(np.float32)).astype(np.float32)


def _lstm(
    path: str, weights: npt.NDArray[np.generic], recurrence: npt.NDArray[np.generic], bias: npt.NDArray[np.generic]
) -> Parameters:
    """Return a bidirectional LSTM's parameters; ONNX orders the gates input, output, forget, cell, torch i, f, c, o."""

    def ordered(array: npt.NDArray[np.generic]) -> FloatArray:
        given, output, forget, cell = np.split(array, 4, axis=0)
        return np.concatenate([given, forget, cell, output], axis=0).astype(np.float32)

    found: Parameters = {}
    for direction, suffix in enumerate(("", "_reverse")):
        found[f"{path}.weight_ih_l0{suffix}"] = ordered(weights[direction])
        found[f"{path}.weight_hh_l0{suffix}"] = ordered(recurrence[direction])
        given, recurrent = np.split(bias[direction], 2)
        found[f"{path}.bias_ih_l0{suffix}"] = ordered(given)
        found[f"{path}.bias_hh_l0{suffix}"] = ordered(recurrent)
    return found


def _expected() -> frozenset[str]:
    """Return the names of every parameter that the model reads."""
    layer = "bert.encoder.albert_layer_groups.0.albert_layers.0"
    pairs = [
        "bert.embeddings.LayerNorm", "bert.encoder.embedding_hidden_mapping_in", "bert_encoder",
        *(f"{layer}.attention.{name}" for name in ("query", "key", "value", "dense", "LayerNorm")),
        *(f"{layer}.{name}" for name in ("ffn", "ffn_output", "full_layer_layer_norm")),
        "predictor.duration_proj.linear_layer", "predictor.F0_proj", "predictor.N_proj",
        "decoder.F0_conv", "decoder.N_conv", "decoder.asr_res.0", "decoder.generator.conv_post",
        "decoder.generator.m_source.l_linear",
    ]  # fmt: skip
    alone = [f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")]
    alone.append("text_encoder.embedding.weight")
    lstms = ["predictor.lstm", "predictor.shared", "text_encoder.lstm"]
    for number in range(3):
        pairs.append(f"text_encoder.cnn.{number}.0")
        alone += [f"text_encoder.cnn.{number}.1.{name}" for name in ("gamma", "beta")]
        lstms.append(f"predictor.text_encoder.lstms.{2 * number}")
        pairs.append(f"predictor.text_encoder.lstms.{2 * number + 1}.fc")
    blocks = {f"predictor.{curve}.{number}": number == 1 for curve in ("F0", "N") for number in range(3)}
    blocks |= {"decoder.encode": False} | {f"decoder.decode.{number}": number == 3 for number in range(4)}
    for block, is_upsampling in blocks.items():
        pairs += [f"{block}.{name}" for name in ("conv1", "conv2", "norm1.fc", "norm2.fc")]
        pairs += [f"{block}.pool"] if is_upsampling else []
        if is_upsampling or block.startswith("decoder."):
            alone.append(f"{block}.conv1x1.weight")
    generator = "decoder.generator"
    pairs += [f"{generator}.{name}.{number}" for name in ("ups", "noise_convs") for number in range(2)]
    for block in [
        *(f"{generator}.resblocks.{number}" for number in range(6)),
        f"{generator}.noise_res.0",
        f"{generator}.noise_res.1",
    ]:
        for number in range(3):
            pairs += [f"{block}.{name}.{number}" for name in ("convs1", "convs2")]
            pairs += [f"{block}.{name}.{number}.fc" for name in ("adain1", "adain2")]
            alone += [f"{block}.{name}.{number}" for name in ("alpha1", "alpha2")]
    lstm_names = [f"{kind}_{way}_l0{side}" for kind in ("weight", "bias") for way in ("ih", "hh") for side in ("", "_reverse")]
    return frozenset(
        [f"{pair}.{kind}" for pair in pairs for kind in ("weight", "bias")]
        + alone
        + [f"{lstm}.{name}" for lstm in lstms for name in lstm_names]
    )


EXPECTED = _expected()
