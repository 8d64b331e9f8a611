"""From finished spans to a receiver: limits, wire format, senders, and the one thread that drives them.

Rules
-----
1. Imports go down only: records, settings, names and OpenTelemetry; never dask or distributed.
2. Nothing here blocks a caller of `Emitter.emit`, and nothing raises into it.
3. No span of ours passes through OpenTelemetry's SDK on the way to OTLP.
4. Every span that was emitted ends in exactly one fate, and the fates add up.
"""
