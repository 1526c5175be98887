"""ds_config.json: what its keys may hold (`schema`), which of them do something here (`keys`), and how a file is read.

`Config.load(file or dictionary, world_size)` checks it as a whole and names every problem at once. It communicates nothing.
"""

from .load import Config

__all__ = ["Config"]
