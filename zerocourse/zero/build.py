from ..sharding import *  # TEMPORARY
from ..sharding import STAGES, shard
