"""
Measurements against the official SDK's server: see ``fanout``.
"""
