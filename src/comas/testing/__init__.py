"""Fakes and contract checks for those who extend comas: a scripted host, recordings, a tiny random
model, and `check_method`, `check_task`, `check_host`, `check_engine`.

They ship in the package and need no test runner; a broken contract is an AssertionError that says
which. Leaves out: anything that judges how good a method is.
"""

from __future__ import annotations

from comas.testing.engines import check_engine as check_engine
from comas.testing.hosts import check_host as check_host
from comas.testing.hosts import scripted_elsewhere as scripted_elsewhere
from comas.testing.methods import check_method as check_method
from comas.testing.recorded import Recorded as Recorded
from comas.testing.recorded import replay as replay
from comas.testing.scripted import Script as Script
from comas.testing.scripted import Scripted as Scripted
from comas.testing.scripted import Table as Table
from comas.testing.scripted import cut as cut
from comas.testing.scripted import discuss as discuss
from comas.testing.scripted import golden_script as golden_script
from comas.testing.scripted import play_step as play_step
from comas.testing.scripted import scripted_context as scripted_context
from comas.testing.scripted import scripted_team as scripted_team
from comas.testing.tasks import check_task as check_task
from comas.testing.tasks import check_wording as check_wording
from comas.testing.tiny import FAMILIES as FAMILIES
from comas.testing.tiny import tiny_model as tiny_model
