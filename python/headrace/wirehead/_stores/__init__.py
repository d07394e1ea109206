"""Where a cache is kept: in a folder, or on a server that speaks MongoDB's protocol.

``store`` defines the interface that the protocol needs.
"""
