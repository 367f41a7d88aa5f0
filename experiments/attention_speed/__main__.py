"""Run the experiment: `python -m experiments.attention_speed run`, or another of its verbs."""

from experiments.attention_speed.compilation import compile_kernels
from experiments.attention_speed.figures import figures
from experiments.attention_speed.overhead import overhead
from experiments.attention_speed.roofline import roofline
from experiments.attention_speed.run import run
from experiments.attention_speed.tables import pages, tables
from experiments.attention_speed.tpu import compile_tpu
from experiments.common.command import application, main

app = application(
    "attention_speed",
    "Time sharpmax.attention against PyTorch's attention on the same inputs.",
    run,
    tables,
    figures,
    pages=pages,
)
app.command("compile")(compile_kernels)
app.command("compile-tpu")(compile_tpu)
app.command("overhead")(overhead)
app.command("roofline")(roofline)

if __name__ == "__main__":
    main(app)
