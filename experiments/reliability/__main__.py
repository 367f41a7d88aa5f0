"""Run it: `python -m experiments.reliability run|tables|figures|mutations|libraries`."""

from experiments.common.command import application, main
from experiments.reliability.figures import figures
from experiments.reliability.libraries import libraries
from experiments.reliability.mutations import mutations
from experiments.reliability.run import run
from experiments.reliability.tables import pages, tables

app = application(
    "reliability",
    "Reliability: attention against an oracle on random problems, tests against planted bugs.",
    run,
    tables,
    figures,
    pages=pages,
)
app.command("mutations")(mutations)
app.command("libraries")(libraries)

if __name__ == "__main__":
    main(app)
