"""Worker processes and threads.

Their code, how they start, die, are replaced and get a changed dataset, and how they report errors. `main`,
`sample_maker` and `stream_reader` run in a worker; `info`, `task`, `errors`, `blame` and `dataset_updates`
serve both sides; all others run in the program.
"""
