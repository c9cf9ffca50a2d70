"""Kokoro-82M in torch for batches: what is padded changes nothing, so that a batch gives what one by one gives.

Every normalisation counts a row's own frames only, every convolution sees zeros where a row has ended, recurrent layers run
over packed rows, and the transforms at both ends of the vocoder know each row's edges. Shapes are rounded up to multiples, so
that few of them occur. Parameters come from `torch_weights`; which utterances share a batch is `scheduler`'s.
The architecture is StyleTTS 2's (arXiv 2306.07691) with an iSTFTNet vocoder (arXiv 2203.02395), as Kokoro-82M's authors set it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kokoro_backend.torch_weights import Parameters

TOKEN_MULTIPLE = 16
FRAME_MULTIPLE = 16
"""Of 25 ms: lengths are rounded up to 0.4 s."""
_WINDOW = 20
_HOP = 5
_BINS = _WINDOW // 2 + 1
_SAMPLES_PER_FRAME = 600
_SAMPLES_PER_PITCH = 300
_HARMONICS = 9
_VOICED_HZ = 10.0
_SINE = 0.1
_VOICED_NOISE = 0.003
_HEADS = 12
_LAYERS = 12
_NOISE_SEED = 82


@dataclass(frozen=True)
class Acoustics:
    """What the text side hands to the vocoder: features (batch, 512, 2 * frames), pitch (batch, 2 * frames) in Hz."""

    features: Tensor
    pitch: Tensor
    style: Tensor
    frames: Tensor
    """Each row's own frames of 25 ms; what lies beyond is padding."""
    durations: list[tuple[int, ...]]
    """Frames of each token, pads included, of each row."""


def rounded_up(count: int, multiple: int) -> int:
    """Return the least multiple that is at least `count`."""
    return -(-count // multiple) * multiple


class TorchKokoro:
    """The model's parameters on one device, and its two halves."""

    def __init__(self, parameters: Parameters, device: torch.device, *, with_noise: bool = True) -> None:
        """with_noise: False leaves the breath out of the source, for comparisons."""
        self.device = device
        self._with_noise = with_noise
        self._of = {name: torch.from_numpy(array.copy()).to(device) for name, array in parameters.items()}
        self._lstms = {
            name.removesuffix(".weight_ih_l0"): self._lstm(name.removesuffix(".weight_ih_l0"))
            for name in parameters
            if name.endswith(".weight_ih_l0")
        }
        self._hann = torch.hann_window(_WINDOW, periodic=True, device=device)
        self._noise = torch.empty(0, _HARMONICS, device=device)

    def _lstm(self, name: str) -> torch.nn.LSTM:
        inputs = self._of[f"{name}.weight_ih_l0"].shape[1]
        hidden = self._of[f"{name}.weight_hh_l0"].shape[1]
        lstm = torch.nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True).to(self.device)
        lstm.load_state_dict({part: self._of.pop(f"{name}.{part}") for part in lstm.state_dict()})
        lstm.flatten_parameters()
        return lstm.eval().requires_grad_(False)

    def acoustics(self, tokens: Sequence[Sequence[int]], styles: Tensor, speeds: Sequence[float]) -> Acoustics:
        """Return what the text side makes of a batch.

        tokens: of each utterance, without the pads at its ends; styles: (batch, 256); speeds: 1.0 is the voice's own pace.
        """
        lengths = torch.tensor([len(row) + 2 for row in tokens])
        width = rounded_up(int(lengths.max()), TOKEN_MULTIPLE)
        ids = torch.zeros(len(tokens), width, dtype=torch.long)
        for row, own in enumerate(tokens):
            ids[row, 1 : len(own) + 1] = torch.tensor(own)
        ids = ids.to(self.device)
        mask = _mask(lengths.to(self.device), width)
        prosody = styles[:, 128:]
        encoded = self._linear("bert_encoder", self._bert(ids, mask))
        read = self._duration_features(encoded, prosody, lengths, mask)
        times = torch.sigmoid(
            self._linear("predictor.duration_proj.linear_layer", self._recurrent("predictor.lstm", read, lengths))
        )
        paces = torch.tensor(speeds, device=self.device)[:, None]
        durations = torch.round(times.sum(-1) / paces).clamp(min=1).long() * mask.long()
        frames = durations.sum(1)
        spread = _alignment(durations, rounded_up(int(frames.max()), FRAME_MULTIPLE))
        pitch, energy = self._curves(spread.transpose(1, 2) @ read, prosody, frames)
        text = self._text(ids, lengths, mask).transpose(1, 2) @ spread
        features = self._decoded(text, pitch, energy, styles[:, :128], frames)
        told = [tuple(row[:length].tolist()) for row, length in zip(durations.cpu(), lengths.tolist(), strict=True)]
        return Acoustics(features, pitch, styles[:, :128], frames, told)

    def sound(self, made: Acoustics, source: Tensor | None = None) -> list[Tensor]:
        """Return the samples of each row. source: the spectrum of another run's source, for comparisons."""
        x = made.features
        count = 60 * x.shape[2] + 1
        spectrum = self.source(made) if source is None else source
        for stage, (rate, kernel) in enumerate(((10, 20), (6, 12))):
            own = made.frames * (20 if stage == 0 else 120) + stage
            name = f"decoder.generator.ups.{stage}"
            before = _mask(made.frames * (2 if stage == 0 else 20), x.shape[2])[:, None]
            x = functional.leaky_relu(x, 0.1) * before
            x = functional.conv_transpose1d(x, *self._pair(name), stride=rate, padding=(kernel - rate) // 2)
            conv = f"decoder.generator.noise_convs.{stage}"
            if stage == 0:
                added = functional.conv1d(spectrum, *self._pair(conv), stride=6, padding=3)
            else:
                x = functional.pad(x, (1, 0), mode="reflect")
                added = functional.conv1d(spectrum, *self._pair(conv))
            mask = _mask(own, x.shape[2])[:, None]
            x = x + self._resonance(f"decoder.generator.noise_res.{stage}", added, made.style, mask)
            blocks = [f"decoder.generator.resblocks.{3 * stage + kind}" for kind in range(3)]
            x = sum((self._resonance(block, x, made.style, mask) for block in blocks), torch.zeros_like(x)) / 3
        mask = _mask(made.frames * 120 + 1, count)[:, None]
        x = functional.conv1d(functional.leaky_relu(x) * mask, *self._pair("decoder.generator.conv_post"), padding=3)
        samples = self._from_spectrum(torch.exp(x[:, :_BINS]), torch.sin(x[:, _BINS:]), mask)
        return [row[: _SAMPLES_PER_FRAME * own] for row, own in zip(samples, made.frames.tolist(), strict=True)]

    def source(self, made: Acoustics) -> Tensor:
        """Return the spectrum of the harmonic source: 11 magnitudes and 11 phases of each 5 samples."""
        pitch = made.pitch[:, :, None]
        steps = (pitch * torch.arange(1, _HARMONICS + 1, device=self.device) / 24_000) % 1
        # The phase of whole pitch steps, then between them: beyond a row's end the pitch is 0, so its phase stands still.
        phase = torch.cumsum(steps, 1) * 2 * torch.pi * _SAMPLES_PER_PITCH
        phase = functional.interpolate(phase.transpose(1, 2), scale_factor=_SAMPLES_PER_PITCH, mode="linear").transpose(1, 2)
        voiced = (pitch > _VOICED_HZ).float().repeat_interleave(_SAMPLES_PER_PITCH, 1)
        waves = torch.sin(phase) * _SINE * voiced
        if self._with_noise:
            # One breath for all: the same utterance sounds the same, alone or in any batch.
            waves = waves + self._breath(waves.shape[1]) * (voiced * _VOICED_NOISE + (1 - voiced) * _SINE / 3)
        signal = torch.tanh(self._linear("decoder.generator.m_source.l_linear", waves)).squeeze(-1)
        return self._to_spectrum(signal, made.frames * _SAMPLES_PER_FRAME)

    def _breath(self, samples: int) -> Tensor:
        if len(self._noise) < samples:
            generator = torch.Generator().manual_seed(_NOISE_SEED)
            # On the CPU: a GPU's generator gives other numbers.
            self._noise = torch.randn(rounded_up(samples, 24_000), _HARMONICS, generator=generator).to(self.device)
        return self._noise[:samples]

    def _to_spectrum(self, signal: Tensor, lengths: Tensor) -> Tensor:
        """Return magnitudes and phases; each row is mirrored at its own two ends."""
        width = signal.shape[1]
        last = lengths[:, None] - 1
        places = (torch.arange(width + _WINDOW, device=self.device) - _WINDOW // 2).abs()[None]
        places = torch.where(places > last, 2 * last - places, places).clamp(min=0)
        mirrored = signal.gather(1, places)
        spectrum = torch.fft.rfft(mirrored.unfold(1, _WINDOW, _HOP) * self._hann).transpose(1, 2)
        mask = _mask(lengths // _HOP + 1, spectrum.shape[2])[:, None]
        return torch.cat([spectrum.abs(), spectrum.angle()], 1) * mask

    def _from_spectrum(self, magnitude: Tensor, phase: Tensor, mask: Tensor) -> Tensor:
        """Return the samples whose overlapping pieces have this spectrum; pieces beyond a row's end do not exist."""
        pieces = torch.fft.irfft(torch.polar(magnitude, phase), n=_WINDOW, dim=1) * self._hann[:, None] * mask
        weights = (self._hann**2)[:, None] * mask
        summed, weight = (
            functional.conv_transpose1d(each, torch.eye(_WINDOW, device=self.device)[:, None], stride=_HOP).squeeze(1)
            for each in (pieces, weights)
        )
        return (summed / weight.clamp(min=1e-11))[:, _WINDOW // 2 : -(_WINDOW // 2)]

    def _pair(self, name: str) -> tuple[Tensor, Tensor | None]:
        return self._of[f"{name}.weight"], self._of.get(f"{name}.bias")

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, *self._pair(name))

    def _recurrent(self, name: str, x: Tensor, lengths: Tensor) -> Tensor:
        """Run a bidirectional LSTM over each row's own steps; lengths: on the CPU."""
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self._lstms[name](packed)[0], batch_first=True, total_length=x.shape[1])[0]

    def _bert(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return ALBERT's view of the phonemes: twelve times the same layer."""
        tables = "bert.embeddings"
        x = self._of[f"{tables}.word_embeddings.weight"][ids] + self._of[f"{tables}.token_type_embeddings.weight"][0]
        x = x + self._of[f"{tables}.position_embeddings.weight"][: ids.shape[1]]
        x = self._linear("bert.encoder.embedding_hidden_mapping_in", self._normed(f"{tables}.LayerNorm", x))
        layer = "bert.encoder.albert_layer_groups.0.albert_layers.0"
        for _ in range(_LAYERS):
            query, key, value = (
                self._linear(f"{layer}.attention.{part}", x).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask.bool()[:, None, None])
            attended = self._linear(f"{layer}.attention.dense", seen.transpose(1, 2).flatten(2))
            x = self._normed(f"{layer}.attention.LayerNorm", x + attended)
            wide = functional.gelu(self._linear(f"{layer}.ffn", x), approximate="tanh")
            x = self._normed(f"{layer}.full_layer_layer_norm", x + self._linear(f"{layer}.ffn_output", wide))
        return x

    def _normed(self, name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], *self._pair(name), eps=1e-12)

    def _duration_features(self, x: Tensor, style: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        spoken = mask[:, :, None]
        beside = style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([x, beside], -1) * spoken
        for number in range(3):
            x = self._recurrent(f"predictor.text_encoder.lstms.{2 * number}", x, lengths)
            scale, shift = self._linear(f"predictor.text_encoder.lstms.{2 * number + 1}.fc", style)[:, None].chunk(2, -1)
            x = (1 + scale) * functional.layer_norm(x, x.shape[-1:]) + shift
            x = torch.cat([x, beside], -1) * spoken
        return x

    def _text(self, ids: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        spoken = mask[:, None]
        x = self._of["text_encoder.embedding.weight"][ids].transpose(1, 2) * spoken
        for number in range(3):
            name = f"text_encoder.cnn.{number}"
            x = functional.conv1d(x, *self._pair(f"{name}.0"), padding=2).transpose(1, 2)
            x = functional.layer_norm(x, x.shape[-1:], self._of[f"{name}.1.gamma"], self._of[f"{name}.1.beta"])
            x = functional.leaky_relu(x.transpose(1, 2), 0.2) * spoken
        return self._recurrent("text_encoder.lstm", x.transpose(1, 2), lengths)

    def _curves(self, x: Tensor, style: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return pitch and energy, two values a frame."""
        shared = self._recurrent("predictor.shared", x, frames.cpu()).transpose(1, 2)
        curves = []
        for name in ("F0", "N"):
            curve = shared
            for number in range(3):
                curve = self._styled(f"predictor.{name}.{number}", curve, style, frames * (1 if number < 2 else 2))
            mask = _mask(2 * frames, curve.shape[2])
            curves.append(functional.conv1d(curve, *self._pair(f"predictor.{name}_proj")).squeeze(1) * mask)
        return curves[0], curves[1]

    def _decoded(self, text: Tensor, pitch: Tensor, energy: Tensor, style: Tensor, frames: Tensor) -> Tensor:
        curves = [
            functional.conv1d(curve[:, None], *self._pair(f"decoder.{name}_conv"), stride=2, padding=1)
            for name, curve in (("F0", pitch), ("N", energy))
        ]
        x = self._styled("decoder.encode", torch.cat([text, *curves], 1), style, frames)
        rest = functional.conv1d(text, *self._pair("decoder.asr_res.0"))
        for number in range(4):
            x = self._styled(f"decoder.decode.{number}", torch.cat([x, rest, *curves], 1), style, frames)
        return x

    def _styled(self, name: str, x: Tensor, style: Tensor, own: Tensor) -> Tensor:
        """Run a residual block whose normalisations follow the style; it doubles the length where it has a pool.

        own: each row's length before the block.
        """
        mask = _mask(own, x.shape[2])[:, None]
        shortcut = x
        y = functional.leaky_relu(self._adapted(f"{name}.norm1.fc", x, style, mask), 0.2) * mask
        if f"{name}.pool.weight" in self._of:
            weight, bias = self._pair(f"{name}.pool")
            y = functional.conv_transpose1d(y, weight, bias, stride=2, padding=1, output_padding=1, groups=x.shape[1])
            shortcut = x.repeat_interleave(2, 2)
            mask = _mask(2 * own, y.shape[2])[:, None]
            y = y * mask
        y = functional.conv1d(y, *self._pair(f"{name}.conv1"), padding=1)
        y = functional.leaky_relu(self._adapted(f"{name}.norm2.fc", y, style, mask), 0.2) * mask
        y = functional.conv1d(y, *self._pair(f"{name}.conv2"), padding=1)
        if f"{name}.conv1x1.weight" in self._of:
            shortcut = functional.conv1d(shortcut, *self._pair(f"{name}.conv1x1"))
        return (y + shortcut) * mask / 2**0.5

    def _resonance(self, name: str, x: Tensor, style: Tensor, mask: Tensor) -> Tensor:
        """Run a residual block of the vocoder: three pairs of convolutions with periodic activations."""
        for number in range(3):
            y = x
            for half, dilation in ((1, 2 * number + 1), (2, 1)):
                y = self._adapted(f"{name}.adain{half}.{number}.fc", y, style, mask)
                pace = self._of[f"{name}.alpha{half}.{number}"]
                y = (y + torch.sin(pace * y) ** 2 / pace) * mask
                weight, bias = self._pair(f"{name}.convs{half}.{number}")
                y = functional.conv1d(y, weight, bias, dilation=dilation, padding=dilation * (weight.shape[2] - 1) // 2)
            x = x + y
        return x

    def _adapted(self, name: str, x: Tensor, style: Tensor, mask: Tensor) -> Tensor:
        """Normalise each channel over the row's own steps, then scale and shift it as the style says."""
        scale, shift = self._linear(name, style)[:, :, None].chunk(2, 1)
        count = mask.sum(-1, keepdim=True)
        centred = (x - (x * mask).sum(-1, keepdim=True) / count) * mask
        variance = (centred * centred).sum(-1, keepdim=True) / count
        return (1 + scale) * centred * torch.rsqrt(variance + 1e-5) + shift


def _mask(lengths: Tensor, width: int) -> Tensor:
    """Return 1.0 where a row has something of its own, shape (batch, width)."""
    return (torch.arange(width, device=lengths.device)[None] < lengths[:, None]).float()


def _alignment(durations: Tensor, frames: int) -> Tensor:
    """Return which token each frame belongs to, shape (batch, tokens, frames)."""
    ends = durations.cumsum(1)[:, :, None]
    places = torch.arange(frames, device=durations.device)[None, None]
    return ((places < ends) & (places >= ends - durations[:, :, None])).float()
