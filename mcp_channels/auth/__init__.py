"""
Who is calling: Django REST framework's authentication, and the principal that it leads to.
"""
