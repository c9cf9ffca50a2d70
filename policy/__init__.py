"""The governance core: who may do what, what is changed on the way, what it counts for.

No I/O, no clock, no randomness, no logging: time, ids and keys are arguments, so every rule can be tested, fuzzed and
explained without a socket. The gateway uses it to decide; the control plane to explain and to validate.
Read in this order: `facts` (what a request is), `decide` (the one entry), `refusal` (how we say no), `session` (an open
WebSocket), `usage` (what is counted). Providers differ only in the frozen data of `providers`.
"""
