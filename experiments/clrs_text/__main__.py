"""`python -m experiments.clrs_text`: run the experiment, and make its tables and figures."""

from experiments.clrs_text.figures import figures
from experiments.clrs_text.levers import levers
from experiments.clrs_text.run import run
from experiments.clrs_text.tables import pages, tables
from experiments.common.command import application, main

APPLICATION = application(
    "clrs_text",
    "CLRS-Text: language models that run algorithms at sizes beyond training.",
    run,
    tables,
    figures,
    pages=pages,
)
APPLICATION.command("levers")(levers)

if __name__ == "__main__":
    main(APPLICATION)
