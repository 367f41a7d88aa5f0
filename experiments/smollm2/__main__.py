"""Run the experiment: `python -m experiments.smollm2 run|alternatives|tables|figures`."""

from experiments.common.command import application, main
from experiments.smollm2.alternatives import alternatives
from experiments.smollm2.figures import figures
from experiments.smollm2.run import run
from experiments.smollm2.tables import pages, tables

app = application(
    "smollm2",
    "Diagnose, calibrate and evaluate SmolLM2-135M-Instruct.",
    run,
    tables,
    figures,
    pages=pages,
)
app.command("alternatives")(alternatives)

if __name__ == "__main__":
    main(app)
