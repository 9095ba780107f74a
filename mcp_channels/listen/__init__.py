"""
One stream and the many: the filter, the frames, the stream, and the hub that feeds a process's streams.

Nothing here knows HTTP, or who is calling.
"""
