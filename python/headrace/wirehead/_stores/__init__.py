"""Where a cache is kept: in a folder, or on a server that speaks MongoDB's protocol.

``store`` says what the protocol needs of either.
"""
