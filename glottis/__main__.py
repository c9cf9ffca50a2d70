"""`python -m glottis`: the command line for children, which must run on the parent's interpreter and nothing else."""

from glottis.main import main

main()
