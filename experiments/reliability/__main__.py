"""Run the experiment: `python -m experiments.reliability run|tables|figures`."""

from experiments.common.command import application, main
from experiments.reliability.figures import figures
from experiments.reliability.run import run
from experiments.reliability.tables import tables

app = application(
    "reliability",
    "Reliability: attention against an oracle on random problems, tests against planted bugs.",
    run,
    tables,
    figures,
)

if __name__ == "__main__":
    main(app)
