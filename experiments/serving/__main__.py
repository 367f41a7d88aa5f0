"""Run the experiment: `python -m experiments.serving run|tables|figures`."""

from experiments.common.command import application, main
from experiments.serving.figures import figures
from experiments.serving.run import run
from experiments.serving.tables import tables

app = application(
    "serving",
    "Accuracy of a folded calibration in transformers, onnxruntime and llama.cpp.",
    run,
    tables,
    figures,
)

if __name__ == "__main__":
    main(app)
