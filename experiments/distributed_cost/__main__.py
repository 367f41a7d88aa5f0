"""Run the experiment: `python -m experiments.distributed_cost run|tables|figures`."""

from experiments.common.command import application, main
from experiments.distributed_cost.figures import figures
from experiments.distributed_cost.run import run
from experiments.distributed_cost.tables import tables

app = application(
    "distributed_cost",
    "Attention over ranks: messages and bytes of each method, a model of their time, and gloo.",
    run,
    tables,
    figures,
)

if __name__ == "__main__":
    main(app)
