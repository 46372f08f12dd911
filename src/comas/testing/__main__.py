"""`python -m comas.testing FOLDER`: write the golden transcripts anew."""

import sys
from pathlib import Path

from comas.testing import GOLDEN, golden

for method_name in GOLDEN:
    transcript = Path(sys.argv[1]) / f"{method_name}.json"
    transcript.write_text(golden(method_name), encoding="utf-8")
