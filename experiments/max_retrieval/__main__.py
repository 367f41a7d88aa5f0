"""Run max retrieval: `python -m experiments.max_retrieval run|tables|figures|demo`."""

from experiments.common.command import application, main
from experiments.max_retrieval.demo import demo
from experiments.max_retrieval.figures import figures
from experiments.max_retrieval.run import run
from experiments.max_retrieval.tables import pages, tables

app = application(
    "max_retrieval",
    "Max retrieval: one attention head looks up one item out of up to a million.",
    run,
    tables,
    figures,
    pages=pages,
)
app.command("demo")(demo)

if __name__ == "__main__":
    main(app)
