"""
What can be read: models as MCP resources, who may read them, and what their changes notify.
"""
