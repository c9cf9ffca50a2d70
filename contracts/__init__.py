"""What separately deployed processes must agree on, and nothing else.

Ids, the configuration snapshot with its signed manifest, token claims, events, prices, NATS names, sealed credentials,
and the codec that carries them. No I/O, no clock, no randomness: those are arguments. Every wire shape has a golden file in
`tests/golden/contracts/`; a change that breaks one needs a new schema number. Read next: `snapshot`, `events`.
"""
