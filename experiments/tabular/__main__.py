"""Run the experiment: `python -m experiments.tabular setup|fit|run|tables|figures`."""

from experiments.common.command import application, main
from experiments.tabular.figures import figures
from experiments.tabular.run import fit, run, setup
from experiments.tabular.tables import pages, tables

app = application(
    "tabular",
    "Tables: does sharper attention help a frozen in-context learner beyond its trained size?",
    run,
    tables,
    figures,
    pages=pages,
)
app.command("setup")(setup)
app.command("fit")(fit)

if __name__ == "__main__":
    main(app)
