"""The lab's engine room: run real inference techniques on a real model and record what they do.

`tracegen.model` is the decoder, `tracegen.techniques` holds one technique a module,
`tracegen.record` drives them and writes `traces/<machine>/<technique>.parquet`, and
`tracegen.trace` reads those back.
"""
