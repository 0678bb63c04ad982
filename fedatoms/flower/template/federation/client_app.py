"""What runs on every node."""

from fedatoms.flower import client_app
from federation.task import task

app = client_app(task)
