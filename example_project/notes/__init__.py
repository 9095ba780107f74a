"""
Notes, the app whose rows MCP clients read and watch.
"""
