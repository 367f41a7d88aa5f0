"""Run the experiment: `python -m experiments.dispersion run|tables|figures`."""

from experiments.common.command import application, main
from experiments.dispersion.figures import figures
from experiments.dispersion.run import run
from experiments.dispersion.tables import tables

app = application(
    "dispersion",
    "Dispersion: the largest softmax coefficient of a bounded row falls as the row grows.",
    run,
    tables,
    figures,
)

if __name__ == "__main__":
    main(app)
