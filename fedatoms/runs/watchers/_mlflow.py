"""MLflow: runs and metrics in its own store, a file beside the runs unless MLFLOW_TRACKING_URI names another."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from fedatoms.experiment.fields import Experiment
from fedatoms.experiment.files import without_paths
from fedatoms.runs.watchers.base import Ended, Watching, lasting_name

ENDS: Mapping[Ended, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
QUIETLY = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}  # nothing is sent unasked
OURS = "fedatoms.run"  # the tag by which a resumed run is found


def mlflow(experiment: Experiment, folder: Path, first: int) -> Watching:
    """Logs to ``mlflow.db`` in ``--out``; a resumed run continues its own, and logs what that lacks."""
    os.environ.update({**QUIETLY, **os.environ})
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent.absolute() / 'mlflow.db'}"
    client, mine = MlflowClient(uri), lasting_name(experiment, folder)
    known = client.get_experiment_by_name("fedatoms")
    group = known.experiment_id if known else client.create_experiment("fedatoms")
    ours = [each.info.run_id for each in client.search_runs([group], f"tags.`{OURS}` = '{mine}'")]
    last = {run: max((each.step for each in client.get_metric_history(run, "seconds")), default=0) for run in ours}
    for each in [run for run in ours if last[run] > first > 0]:  # it has rounds that the run has lost
        client.delete_run(each)
    run = next((each for each in ours if last[each] <= first), "")
    if not run:
        run = client.create_run(group, tags={OURS: mine}, run_name=folder.name).info.run_id
        client.log_batch(run, params=[Param(name, str(value)) for name, value in without_paths(experiment).items()])
    client.update_run(run, "RUNNING")

    def see(t: int, numbers: Mapping[str, float]) -> None:
        client.log_batch(run, [Metric(name, value, int(1000 * time.time()), t) for name, value in numbers.items()])

    return Watching(see, lambda ended: client.set_terminated(run, ENDS[ended]), last.get(run, 0))
