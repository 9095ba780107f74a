"""
HTTP: the consumer that serves listen streams and hands everything else to the SDK.
"""
