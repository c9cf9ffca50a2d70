"""What is printed once everything is up: where it is, a token, and a program to copy."""

from __future__ import annotations

from contracts.secret import Secret
from glottis.first_run import MODEL, caller_file, workspace_file
from glottis.stack import Stack

# For the official SDK, version 4: the base URL and the key are all that differs from calling the provider.
_SNIPPET = """\
    # pip install cartesia
    # export SSL_CERT_FILE={authority}
    import json
    from cartesia import Cartesia

    token = json.load(open("{caller}"))["token"]
    client = Cartesia(base_url="{base_url}", api_key=token)
    answer = client.tts.generate(
        model_id="{model}",
        transcript="Hello from your own gateway.",
        voice="af_heart",
        output_format={{"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24000}},
    )
    answer.write_to_file("hello.wav")"""


def base_url(stack: Stack) -> str:
    """Return what a client of Cartesia's names as its base URL."""
    return f"{stack.https_url}/cartesia"


def welcome(stack: Stack, token: Secret, *, shows_token: bool) -> str:
    """Return the text. shows_token: only for the terminal of who started the stack, never for a log or a journal."""
    caller = caller_file(stack.folder)
    snippet = _SNIPPET.format(authority=stack.certificates.authority, base_url=base_url(stack), caller=caller, model=MODEL)
    shown = token.reveal().decode() if shows_token else f"in {caller}"
    return f"""
Glottis is up.

  gateway        {stack.http_url}   {stack.https_url}
  control plane  {stack.control_plane_url}
  authority      {stack.certificates.authority}   (for clients over HTTPS; not installed anywhere)
  workspace      {workspace_file(stack.folder)}
  logs           {stack.log_folder}
  token          {shown}

{snippet}
"""
