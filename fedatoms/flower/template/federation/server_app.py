"""What runs on the server."""

from fedatoms.flower import server_app
from federation.task import task

app = server_app(task)
