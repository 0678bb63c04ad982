"""What the tests share; no test lives here."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
