"""ds_config.json: what its keys may hold (`schema`), which of them do something here (`keys`), and how it is read.

`Config.load(file or dictionary, world_size)` checks it as a whole and names every problem at once, `explain` says what
its keys do to bytes, and `json_schema` tells editors. Nothing here communicates.
"""

from .load import Config

__all__ = ["Config"]
