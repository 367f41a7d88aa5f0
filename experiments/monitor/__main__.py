"""Run the experiment: `python -m experiments.monitor run|tables|figures`."""

from experiments.common.command import application, main
from experiments.monitor.figures import figures
from experiments.monitor.run import run
from experiments.monitor.tables import tables

app = application(
    "monitor",
    "A monitor of attention in training: what it shows of two runs, and what it costs.",
    run,
    tables,
    figures,
)

if __name__ == "__main__":
    main(app)
