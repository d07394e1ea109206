"""The stored form of a sample: descriptions, and chunks of bytes that may be compressed.

Uses the stores' names of chunks.
"""
