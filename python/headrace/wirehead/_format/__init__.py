"""What a sample becomes: descriptions, and chunks of bytes that are compressed or not.

Uses the stores' names of chunks.
"""
