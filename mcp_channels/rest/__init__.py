"""
A REST API, with Django REST Framework, to manage what the admin manages: ``include("mcp_channels.rest.urls")``.
"""
