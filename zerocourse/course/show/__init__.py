"""What notebooks show: the package's source, what one stage changes from another, tables, and figures with alt texts.

Each function returns a `Shown`. A notebook draws it, and elsewhere it is its plain text.
"""

from .cells.sentences import says, sentence
from .cells.shown import Shown, figure, put
from .cells.sources import difference, source
from .cells.tables import table

__all__ = ["Shown", "difference", "figure", "put", "says", "sentence", "source", "table"]
