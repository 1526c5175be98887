from ..freeable import *  # TEMPORARY
