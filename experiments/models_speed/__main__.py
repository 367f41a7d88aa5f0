"""Run the experiment: `python -m experiments.models_speed VERB`.

The verbs are run, modules, calibrate, tables and figures.
"""

from experiments.common.command import application, main
from experiments.models_speed.calibration import calibrate
from experiments.models_speed.figures import figures
from experiments.models_speed.modules import modules
from experiments.models_speed.run import run
from experiments.models_speed.tables import tables

app = application(
    "models_speed",
    "Time diagnosing and sharpening a model against running it unchanged.",
    run,
    tables,
    figures,
)
app.command("modules")(modules)
app.command("calibrate")(calibrate)

if __name__ == "__main__":
    main(app)
