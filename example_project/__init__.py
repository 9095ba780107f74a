"""
The example project, and the contract with the outside: see README.md.
"""
