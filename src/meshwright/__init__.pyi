"""What type checkers see of the verbs, which are loaded when they are first used (__init__.py)."""

from meshwright.api import calibrate as calibrate
from meshwright.api import catalog as catalog
from meshwright.api import collectives as collectives
from meshwright.api import compare as compare
from meshwright.api import diagnose as diagnose
from meshwright.api import estimate as estimate
from meshwright.api import explain as explain
from meshwright.api import lint as lint
from meshwright.api import memory as memory
from meshwright.api import orders as orders
from meshwright.api import plan as plan
from meshwright.api import prove as prove
from meshwright.api import ranks as ranks
from meshwright.api import timeline as timeline
from meshwright.api import validate as validate
from meshwright.api import watch as watch

VERBS: tuple[str, ...]
__version__: str
